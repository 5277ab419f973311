"""The command line: arguments, Ctrl-C, one line for whatever goes wrong. Heavy modules are imported only when needed.

May import `commands` and everything below.
"""
