"""The ways to execute a carved piece of a program, each in a file of its own, and the names they go by.

Who runs a stage asks `executions` for the one that the program names. May import the rest of `compute`, not its runner.
"""
