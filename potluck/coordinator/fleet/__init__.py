"""Who is here: joining, losing, local devices, profiling a fleet, rehearsed faults.

May import `control`, `profile`, `wire`.
"""
