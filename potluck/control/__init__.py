"""The two state machines, the coordinator's and the device's, and what they go by: ledger, suspicion, drift. Pure.

Needs no torch, socket, clock or thread. May import `recover`, `plan` and the messages of `wire`.
"""
