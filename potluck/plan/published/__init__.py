"""Planners from papers, to compare ours with; each says which paper, and where it follows it.

Needs no torch. May import `plan/cost` and the vocabulary.
"""
