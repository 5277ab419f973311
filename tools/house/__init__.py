"""Measures whether the package keeps the rules of its house.

Rooms and files are small, a name means one thing, a module has a test, and imports neither cross nor go in circles.

`python -m tools.house` prints it, `--json` for programs. Nothing here imports the package: it is read, never run.
"""
