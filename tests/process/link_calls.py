"""Calls that block in a thread of their own, and a link in a process of its own: for tests of links."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOON_S = 20.0  # long enough for a busy machine; nothing waits for it when all is well


def wait_for(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; fail after a deadline."""
    deadline = time.monotonic() + SOON_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        pause.wait(0.005)


class Call:
    """A call in a thread of its own, and how it ended."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.result: object = None
        self.error: Exception | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:
            self.error = error

    def wait_until_blocked(self) -> None:
        """Return once the thread waits for something inside the link."""

        def waits() -> bool:
            frame = sys._current_frames().get(self._thread.ident or 0)
            return (
                frame is not None and frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name == "wait"
            )

        wait_for(waits)

    def end(self) -> Exception | None:
        """The error the call ended with, or None."""
        self._thread.join(SOON_S)
        assert not self._thread.is_alive(), "the call is still blocked"
        return self.error


class PeerProcess:
    """A link in a process of its own."""

    def __init__(self, carrier: str, name: str) -> None:
        script = [sys.executable, str(HERE / "link_peer.py"), carrier, name]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.address: str = self._answer()

    def order(self, **order: object) -> object:
        """Have the process do something and return its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """Stop the process and return once it stands."""
        self._process.send_signal(signal.SIGSTOP)
        wait_for(lambda: os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG) is not None)

    def clean_up(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=SOON_S)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the peer process ended"
        return json.loads(line)
