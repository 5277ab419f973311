"""What every device does in a round, in which order, and what follows from that order. A file for each schedule.

Needs no torch. May import only the vocabulary.
"""
