"""The folder of a run: its name, its files, its process.

May import `control` for the ledger, `metrics` and `tensors`.
"""
