"""What this device can do, measured: blocks, messages, links, memory.

May import `compute`, `profile`, `tensors`, `wire`, and the machine under it.
"""
