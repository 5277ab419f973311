"""The other driver of the state machines and the cost model: virtual time, made-up lines and faults, no torch.

May import `control`, `plan`, `profile`, `paramserver`; never device or coordinator.
"""
