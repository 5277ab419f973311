"""Data that needs no download, data that a device owns, and the order in which samples are used.

Needs no torch. May import only the vocabulary.
"""
