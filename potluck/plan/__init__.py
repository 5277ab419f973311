"""Who runs what: plans checked, explained, and the rows and turns that follow from them. Pure: numbers in, numbers out.

Needs no torch. May import `profile`, `wire` for what a link holds, and the vocabulary.
"""
