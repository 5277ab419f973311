"""After a loss: who has which state, who gets what from whom, and which plan is nearest. Pure.

Needs no torch. May import `plan` and the vocabulary.
"""
