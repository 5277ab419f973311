"""What a device does to itself when it is told to misbehave (`train --chaos`); never unless its owner agreed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from potluck.memory_limit import start
from potluck.wire.messages import Misbehave


def misbehave(order: Misbehave, slow: Callable[[float], None], leave: Callable[[], object]) -> None:
    """Ends, freezes, slows down or leaves. `slow` is told how many times as slow to be."""
    match order.do:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":
            command = [sys.executable, "-m", "potluck.device.host.faults_on_order", f"{os.getpid()}"]
            subprocess.Popen([*command, repr(order.seconds)], stdin=subprocess.DEVNULL, start_new_session=True)
        case "slow":
            slow(order.factor)
            restore = threading.Timer(order.seconds, slow, (1.0,))
            restore.daemon = True
            start(restore)
        case "leave":
            leave()


def freeze(process: int, seconds: float) -> None:
    """Stops a process and lets it go on after some time. From outside: what is stopped cannot wake itself."""
    os.kill(process, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(process, signal.SIGCONT)


if __name__ == "__main__":
    freeze(int(sys.argv[1]), float(sys.argv[2]))
