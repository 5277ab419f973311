"""Rounds that overlap, and plans that follow devices: what they give on devices as they are."""
