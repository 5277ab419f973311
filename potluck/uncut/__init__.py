"""The job on one device: the same program, uncut, in one process. The yardstick of every equality claim.

May import `compute`, `tensors`, `control` for the verdict on a round, and `plan` for whose turn it is.
"""
