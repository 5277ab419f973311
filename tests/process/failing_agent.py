"""A device that ends at a failpoint: python -m tests.process.failing_agent "NAME" COUNT MARKER ADDRESS DEVICE

The marker file is written right before it ends, so that a test can assert that the failpoint was reached.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from potluck.device.process import run_agent
from potluck.settings.address import HERE
from potluck.types import DeviceSpec


def main(name: str, count: str, marker: str, address: str, device: str) -> int:
    left = int(count)

    def failpoint(order: str) -> None:
        nonlocal left
        left -= order == name
        if order == name and left == 0:
            Path(marker).write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    return run_agent(address, DeviceSpec(name=device), HERE, failpoint=failpoint)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
