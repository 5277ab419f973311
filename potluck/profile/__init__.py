"""What is known of devices and links: its cells, how they are kept, borrowed and refreshed. Pure but for the store.

Needs no torch. May import `wire` for what a link is, and the vocabulary.
"""
