"""The command line, with a coordinator that vanishes when a round is in the ledger and nobody knows it yet:

python -m tests.process.dying_coordinator ROUND train job.py …
"""

from __future__ import annotations

import os
import signal
import sys

from potluck.cli.main import main
from potluck.control.cluster_events import Event, Order, Written
from potluck.coordinator.coordinator import Coordinator

LAST = int(sys.argv.pop(1))
_tell = Coordinator.tell


def tell(self: Coordinator, event: Event) -> list[Order]:
    if isinstance(event, Written) and event.round == LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    return _tell(self, event)


if __name__ == "__main__":
    Coordinator.tell = tell  # type: ignore[method-assign]
    main()
