"""The only cost model: seconds, bytes and memory of a round, for many plans at once.

Needs no torch. May import the schedule, the routes and the vocabulary.
"""
