"""`potluck attach`: looks at a run as if it had been started here. Leaving does not end it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click

from potluck.cli.display.choose import Display, open_display
from potluck.cli.failures import StoppedByUser, traceback_kept
from potluck.cli.stopping import EXIT_INTERRUPTED
from potluck.cli.verbs.status import go_on, headline
from potluck.commands.run_log import last_line
from potluck.commands.run_state import Followed, FoundRun, over
from potluck.commands.which_run import chosen_run
from potluck.coordinator.run_folder.process_record import alive, written
from potluck.errors import DeviceError, PotluckError
from potluck.metrics.records import Record
from potluck.settings.own_command import command

_EVERY_S = 0.2  # between two looks at the records: soon enough for who watches, and nothing for the disk


def attach(run: Path | None) -> int:
    """Shows a run until it ends; returns the exit code that its end stands for."""
    run_dir = chosen_run(run)
    try:
        with (
            open_display(f"potluck attach {run_dir}", f"looking into {run_dir}") as display,
            traceback_kept(),
            _interrupts() as interrupted,
        ):
            found = follow(run_dir, display, interrupted)
    except StoppedByUser:
        again, end = command("attach", run_dir), command("stop", run_dir)
        click.echo(f"detached; the run goes on. Look again: {again}; end it: {end}")
        return EXIT_INTERRUPTED
    click.echo(headline(found))
    if way_on := go_on(found):
        click.echo(f"go on    {way_on}")
    return exit_code(found)


def exit_code(found: FoundRun) -> int:
    """What the end of a run stands for."""
    return {"failed": DeviceError.exit_code, "interrupted": PotluckError.exit_code}.get(found.state, 0)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Set by Ctrl-C. As an exception it could come up anywhere, also where a library ignores it."""
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def follow(run_dir: Path, display: Display, interrupted: threading.Event) -> FoundRun:
    """Feeds a display with the records of a run, until its process is gone; an interrupt ends it."""
    records = Followed(run_dir)
    shown = _Shown(display)
    facts = None
    while True:
        facts = written(run_dir) or facts  # its name goes a moment before the process does
        process = alive(facts)  # first: what a process wrote before it ended is then among the records
        shown.records(records.more())
        if process is None:
            return over(run_dir, records, facts)
        if not records.begun(facts):
            shown.note(last_line(run_dir) or f"process {process.pid} has begun, and trains no round yet")
        if interrupted.wait(_EVERY_S):  # as long as the run takes: whoever looks ends it, with Ctrl-C
            raise KeyboardInterrupt


class _Shown:
    """A display that is told of records some time after they were written."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._noted = ""
        self._offset_s: float | None = None  # from a run's own time to our clock

    def note(self, text: str) -> None:
        """Says something, once."""
        if text != self._noted:
            self._noted = text
            self._display.note(text)

    def records(self, fresh: list[tuple[Record, float]]) -> None:
        """Shows records; the first ones are taken for the past."""
        if not fresh:
            return
        # Many records are read at once: by our clock they would all be of this moment, and rounds take no time.
        latest = time.monotonic() - fresh[-1][1]
        if self._offset_s is None:
            self._offset_s = latest
            self._display.catch_up([(record, latest + at_s) for record, at_s in fresh])
        else:
            self._offset_s = min(self._offset_s, latest)  # nothing is written in the future
            for record, at_s in fresh:
                self._display.record(record, self._offset_s + at_s)
