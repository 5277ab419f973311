"""The device's side of a parameter server: trains alone on its own data, and pushes and pulls while it trains on.

May import `uncut`, `paramserver`, `tensors`, `wire`.
"""
