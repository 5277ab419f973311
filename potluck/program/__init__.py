"""The exported model as data: nodes, blocks, pieces, and what crosses between them. Read, checked, hashed and sent.

Needs no torch. May import the schedule (who holds which stage) and the vocabulary.
"""
