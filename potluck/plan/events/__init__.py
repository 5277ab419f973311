"""The event simulation: devices walk their action lists in virtual time. The finer half of the cost model.

Needs no torch. May import `plan/cost` and `plan/schedule`.
"""
