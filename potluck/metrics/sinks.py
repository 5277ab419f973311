"""Sinks: where somebody else's code gets every record of a run as it happens (docs/extending.md)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from potluck.advice import one_line
from potluck.metrics.records import Record


class Sink(Protocol):
    """Somebody who is told what happens in one run."""

    def record(self, record: Record) -> None:
        """Called with every record, one at a time; the run waits until it returns."""

    def close(self) -> None:
        """Called once, when the run is over."""


SinkFactory = Callable[[Path], Sink]  # given the folder of the run
_FACTORIES: list[SinkFactory] = []


def register_sink(factory: SinkFactory) -> None:
    """From now on every run that is trained has a sink of this factory. It is opened with the run's first record."""
    _FACTORIES.append(factory)


class RunSinks:
    """A watcher that hands a run's records to the registered sinks, until it is closed.

    A sink that fails is left out from then on, and ends no run.
    """

    def __init__(self, run_dir: Path, warn: Callable[[str], None]) -> None:
        self._run_dir, self._warn = run_dir, warn
        self._unopened = list(_FACTORIES)  # a run that never begins leaves nothing in its folder
        self._sinks: list[Sink] = []
        self._lock = threading.Lock()  # records of checkpoints come from another thread

    def record(self, record: Record) -> None:
        """Called with every record, as it is written."""
        with self._lock:
            self._open()
            for sink in tuple(self._sinks):
                with self._warning_of(sink):
                    sink.record(record)

    def close(self) -> None:
        """Closes every sink that is left."""
        with self._lock:
            for sink in self._sinks:
                with self._warning_of(sink):
                    sink.close()
            self._unopened, self._sinks = [], []

    def _open(self) -> None:
        factories, self._unopened = self._unopened, []
        for factory in factories:
            with self._warning_of(factory):
                self._sinks.append(factory(self._run_dir))

    @contextlib.contextmanager
    def _warning_of(self, culprit: Sink | SinkFactory) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # it may fail in any way
            why = one_line(error)
            name = getattr(culprit, "__qualname__", type(culprit).__qualname__)
            self._warn(f"metrics sink {name} failed ({why}); training goes on without it")
            self._sinks = [sink for sink in self._sinks if sink is not culprit]
