"""Losses on a testbed: what is noticed, how soon it goes on, and that nothing is lost."""
