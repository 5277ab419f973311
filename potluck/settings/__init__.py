"""What the person at the terminal chose: flags over POTLUCK_* over TOML over defaults; fleets and addresses as text.

Needs no torch. May import only the vocabulary.
"""
