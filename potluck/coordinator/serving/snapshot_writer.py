"""Saves a server's weights in the background whenever some push is not on disk yet, for at most a third of the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from potluck.errors import PotluckError
from potluck.paramserver.server import ParameterServer

_LOOK_S = 0.5  # between two looks whether a snapshot is wanted, or the run over
_REST = 2.0  # times as long as saving took: whoever pushes shares the machine with it


class SnapshotWriter:
    """A thread that saves."""

    def __init__(
        self, server: ParameterServer, save: Callable[[], object], unable: Callable[[PotluckError], None],
        failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        """`unable` is told where there is no room, and it is tried again; `failed` of whatever ends the thread."""
        self._server, self._save, self._unable, self._failed = server, save, unable, failed
        self._wanted, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="potluck-server-saver", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Somebody pushed."""
        self._wanted.set()

    def close(self) -> None:
        """Waits for what is under way."""
        self._over.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._wanted.wait(_LOOK_S)
            self._wanted.clear()
            if not self._server.lags or self._over.is_set():
                continue
            began_s = time.monotonic()
            try:
                self._save()
            except PotluckError as error:
                self._unable(error)
                self._over.wait(_LOOK_S)
            except Exception as error:  # nobody would know that this thread has ended
                self._failed(error)
                return
            self._over.wait(_REST * (time.monotonic() - began_s))
