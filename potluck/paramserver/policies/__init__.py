"""Push policies, one file each: when workers push, who waits, and what the user may say of it. Pure.

Each has a `FACTORY`, which `policy_choice` knows by the name that users give. May import what `paramserver` decides by.
"""
