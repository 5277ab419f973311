"""Finds a plan: which devices form which groups, where to cut, how deep to run, and which plan is taken.

Needs no torch. May import everything else in `plan`.
"""
