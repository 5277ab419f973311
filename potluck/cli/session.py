"""A run as somebody at a terminal has it: a display, Ctrl-C, and one line for whatever goes wrong."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from potluck.cli.display.choose import Display, open_display
from potluck.cli.failures import StoppedByUser, traceback_kept
from potluck.cli.stopping import Stopping
from potluck.errors import PotluckError
from potluck.metrics.records import Record, RunStarted

if TYPE_CHECKING:
    from potluck.coordinator.options import Options


@dataclass
class Terminal:
    """What a run shows and hears; `run_dir` is where a traceback goes, once it is known."""

    display: Display
    stopping: Stopping
    run_dir: Path | None = None

    def options(self, **choices: Any) -> Options:
        """Options of a run that this terminal watches."""
        from potluck.coordinator.options import Options

        return Options(
            watchers=[self.display, self], progress=self.display.note, should_stop=self.stopping.requested, **choices
        )

    def record(self, record: Record) -> None:
        """Called with every record: from the first round on, Ctrl-C lets the round finish."""
        self.stopping.training |= isinstance(record, RunStarted)


@contextlib.contextmanager
def terminal(title: str, first_note: str, *, as_json: bool) -> Iterator[Terminal]:
    """A context for one run; with `as_json`, a failure also ends standard output with a JSON object."""
    try:
        with open_display(title, first_note) as display, Stopping(display.stopping) as stopping:
            it = Terminal(display, stopping)
            try:
                with traceback_kept(lambda: it.run_dir), _interrupts_kept(stopping):
                    yield it
            except StoppedByUser as error:
                raise _with_way_on(error, it.run_dir) from None
    except PotluckError as error:
        if as_json:
            emit({"error": str(error), "exit_code": error.exit_code})
        raise


@contextlib.contextmanager
def _interrupts_kept(stopping: Stopping) -> Iterator[None]:
    """Ctrl-C in the middle of tracing or training makes other things fail on the way out; it is still Ctrl-C."""
    try:
        yield
    except Exception:
        if stopping.at_once:
            raise KeyboardInterrupt from None
        raise


def _with_way_on(error: StoppedByUser, run_dir: Path | None) -> StoppedByUser:
    from potluck.tensors.checkpoint import exists  # only where it is needed: it loads torch

    if run_dir is None or not exists(run_dir):
        return error
    return StoppedByUser(f"{error}; go on from the last checkpoint with --resume --run-dir {run_dir}")


def emit(value: dict[str, Any]) -> None:
    """Writes one JSON object as a line of standard output; numbers that are not finite become null."""
    click.echo(msgspec.json.encode(value).decode())
    sys.stdout.flush()


@contextlib.contextmanager
def failures_as_json(as_json: bool) -> Iterator[None]:
    """With `as_json`, a failure also ends standard output with a JSON object."""
    try:
        with traceback_kept():
            yield
    except PotluckError as error:
        if as_json:
            emit({"error": str(error), "exit_code": error.exit_code})
        raise
