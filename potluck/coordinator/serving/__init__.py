"""A run around a parameter server: its threads, its evaluations, what it keeps on disk.

May import `paramserver`, `uncut`, `tensors`, `wire`, and the coordinator's other rooms.
"""
