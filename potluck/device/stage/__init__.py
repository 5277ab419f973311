"""One device's part of a round: walks the action list, gives and takes tensors, sums gradients, asks for the verdict.

May import `compute`, `tensors`, `plan`, `wire`.
"""
