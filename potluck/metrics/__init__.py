"""What happened in a run, as typed records, and what they add up to. Pure but for the file they are appended to.

Needs no torch. May import only the vocabulary.
"""
