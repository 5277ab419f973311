"""Samples per second of potluck and of what people use today, on the same throttled devices (docs/results.md)."""
