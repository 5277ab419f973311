"""Becomes a device's process: enters its cgroups, then is replaced by the program.

    launch.py DESCRIPTOR FILE... -- PROGRAM ARGUMENT...

The descriptor is closed as soon as it is inside.

A program of its own, so that the device's program is inside the cgroups from its first instruction, and nothing has to
be done between fork and exec of a process that may have threads. It imports next to nothing: its start counts little.
"""

import os
import sys

if __name__ == "__main__":
    split = sys.argv.index("--")
    for path in sys.argv[2:split]:
        with open(path, "w") as file:
            file.write("0")  # the process that writes
    os.close(int(sys.argv[1]))
    os.execv(sys.argv[split + 1], sys.argv[split + 1 :])  # noqa: S606 - a list of arguments, and no shell
