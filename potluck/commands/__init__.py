"""What a verb does, callable from Python: train, verify, choose a plan, look at a run. No arguments, no display.

May import the coordinator's house, `simulate` and everything below.
"""
