"""An agent that trains and answers, but never pushes anything.

python -m tests.process.silent_agent HOST:PORT NAME DATA
"""

from __future__ import annotations

import sys

from potluck.cli.main import main
from potluck.paramserver.client import Client, Next


def never_pushes() -> None:
    """Its timer never ends."""
    after = Client.next

    def silent(self: Client, now_s: float) -> Next:
        found = after(self, now_s)
        return Next.GO_ON if found is Next.PUSH else found

    Client.next = silent  # type: ignore[method-assign]


if __name__ == "__main__":
    address, name, data = sys.argv[1:]
    never_pushes()
    sys.argv = ["potluck", "join", address, "--name", name, "--threads", "1", "--data", data]
    main()
