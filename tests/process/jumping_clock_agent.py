"""A device whose clock on the wall jumps by minutes whenever it is read: … jumping_clock_agent MARKER ADDRESS DEVICE

Only that one: a monotonic clock does not jump. The marker file says that the clock was set to jump.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from potluck.device.process import run_agent
from potluck.settings.address import HERE
from potluck.types import DeviceSpec

JUMP_S = 300.0
_steady = time.time


def jumping() -> float:
    """Up to five minutes off, another way each time."""
    return _steady() + random.uniform(-JUMP_S, JUMP_S)  # noqa: S311


def main(marker: str, address: str, device: str) -> int:
    time.time = jumping
    Path(marker).write_text("jumps")
    return run_agent(address, DeviceSpec(name=device), HERE)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
