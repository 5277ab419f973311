"""One file a verb: settles its settings, calls a command, shows what came of it.

May import `commands`, `cli/display` and everything below.
"""
