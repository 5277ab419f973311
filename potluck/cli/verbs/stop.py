"""`potluck stop`: what Ctrl-C is to a run in a terminal, for one that is elsewhere on this machine."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import click
import psutil

from potluck.cli.display.working import working
from potluck.cli.verbs.attach import exit_code
from potluck.cli.verbs.status import go_on, headline
from potluck.cli.verbs.train import resume_command
from potluck.commands.run_state import Followed, over
from potluck.commands.which_run import chosen_run, running
from potluck.coordinator.run_folder.process_record import ProcessFacts, alive, written
from potluck.errors import InputError, PotluckError
from potluck.settings.own_command import command
from potluck.settings.values import read
from potluck.units import duration_s, duration_text

_EVERY_S = 0.2  # between two looks whether it is over


def stop(run: Path | None, *, now: bool, timeout: str) -> int:
    """Asks a run to end and waits until it has; returns the exit code."""
    timeout_s = read(duration_s, timeout, "--timeout")
    run_dir = chosen_run(run) if run is not None else _only_one()
    facts = written(run_dir)
    process = alive(facts)
    if process is None:
        raise InputError(f"{run_dir} is not running; see how it ended with: {command('status', run_dir)}")
    records = Followed(run_dir)
    began_by = _command_line(process)
    _ask(process, now=now)
    _wait(facts, run_dir, records, timeout_s)
    records.more()
    found = over(run_dir, records, facts)
    click.echo(headline(found))
    if way_on := go_on(found, command_to_go_on(began_by, run_dir)):
        click.echo(f"go on    {way_on}")
    return 0 if found.state == "interrupted" else exit_code(found)


def command_to_go_on(arguments: Sequence[str], run_dir: Path) -> str | None:
    """The command that goes on with a run, if it was begun by a `potluck train` with these arguments."""
    for place, (before, verb) in enumerate(pairwise(arguments), start=1):
        if PurePath(before).name == "potluck" and verb == "train":
            return resume_command(arguments[place:], run_dir)
    return None


def _only_one() -> Path:
    """The run that is running; with several, none is ended by mistake."""
    found = running()
    if len(found) > 1:
        raise InputError(f"{len(found)} runs are running; say which: {', '.join(map(str, found))}")
    return found[0] if found else chosen_run(None)


def _command_line(process: Any) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _ask(process: Any, *, now: bool) -> None:
    # A second SIGINT while the first is not handled yet would be lost; both count alike (stopping.py).
    numbers = (signal.SIGINT, signal.SIGTERM) if now else (signal.SIGINT,)
    try:
        for number in numbers:
            process.send_signal(number)
    except psutil.NoSuchProcess:
        pass  # it has just ended by itself
    except psutil.AccessDenied:
        raise PotluckError(
            f"process {process.pid} belongs to somebody else; stop it as the user who began it"
        ) from None


def _wait(facts: ProcessFacts | None, run_dir: Path, records: Followed, timeout_s: float) -> None:
    """Returns once the process is gone."""
    began_s = time.monotonic()
    with working() as say:
        while alive(facts) is not None:
            waited_s = time.monotonic() - began_s
            if waited_s > timeout_s:
                wait, end = command("attach", run_dir), command("stop", run_dir, "--now")
                raise PotluckError(
                    f"{run_dir}: asked to stop, and not over after {duration_text(waited_s)}; "
                    f"wait once more with: {wait}, or end it with: {end}"
                )
            records.more()
            say(f"{_doing(facts, records)} ({duration_text(waited_s)})")
            time.sleep(_EVERY_S)


def _doing(facts: ProcessFacts | None, records: Followed) -> str:
    if not records.begun(facts):
        return "ending the devices"
    if records.end(facts) is not None:
        return "saving the model and ending the devices"
    return f"finishing round {min(records.view.done + 1, records.view.rounds)} of {records.view.rounds}"
