"""`potluck train --detach`: the same training, as a process that no terminal can end by being closed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click

from potluck.cli.display.working import working
from potluck.cli.session import emit, failures_as_json
from potluck.cli.verbs.status import as_object, status_lines
from potluck.cli.verbs.train import check, invitation
from potluck.commands.here import RUNS
from potluck.commands.run_log import LOG, complaint, last_line
from potluck.commands.run_state import look
from potluck.coordinator.run_folder.folder_names import make, new_run_dir, remove_empty
from potluck.coordinator.run_folder.process_record import ProcessFacts, alive, written
from potluck.errors import InputError, PotluckError
from potluck.metrics.records import RECORDS
from potluck.settings.own_command import command
from potluck.settings.verb_settings import TrainSettings
from potluck.units import duration_text

_BEGIN_S = 900.0  # in which a job is read and its model traced: minutes for a large one, and no more than patience
_END_S = 20.0  # that a process gets to end before it has begun: its devices get 5 s of them
_EVERY_S = 0.1  # between two looks at a process that starts
_QUIET_S = 2.0  # if the input is wrong, the only line is the one that says so


class NotBegun(PotluckError):
    """The process ended before it trained; the message is what it said."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def train_detached(arguments: Sequence[str], settings: TrainSettings, *, resume: bool) -> int:
    """Starts training by itself and says how to look at it, once it has begun; returns the exit code."""
    with failures_as_json(settings.json):
        run_dir = check(settings, resume=resume).run_dir or new_run_dir(RUNS)
        facts = begin(arguments, run_dir)
    if facts is None:  # so little to do that it is over
        found = look(run_dir)
        emit(as_object(found)) if settings.json else click.echo("\n".join(status_lines(found)))
    elif settings.json:
        emit({"run_dir": str(run_dir), "process": facts.pid, "address": facts.address, **_commands(run_dir)})
    else:
        click.echo(f"running  {run_dir} (process {facts.pid}); this terminal may be closed")
        invitation(settings, click.echo)(facts.address or "")
        for verb, line in _commands(run_dir).items():
            click.echo(f"{verb:<8} {line}")
    return 0


def arguments_of(job: str, flags: Mapping[str, Any], config: Path | None, *, resume: bool) -> list[str]:
    """The command line that these flags came from, without the folder of the run."""
    given = {**flags, "config": config, "resume": resume, "run_dir": None}
    found = ["train", job]
    for key, value in given.items():
        flag = f"--{key.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif value not in (None, False):
            found.append(f"{flag}={value}")
    return found


def begin(arguments: Sequence[str], run_dir: Path) -> ProcessFacts | None:
    """Starts the process and waits until it listens for devices; None if it was over before that was seen."""
    made = make(run_dir)
    log_from = 0
    try:
        with _log(run_dir) as log:
            log_from = log.tell()
            child = subprocess.Popen(
                [sys.executable, "-m", "potluck", *arguments, f"--run-dir={run_dir}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        with _ended_with_us(child), working() as say:
            return _await(child, run_dir, log_from, say)
    except NotBegun as error:
        if error.exit_code == InputError.exit_code:
            _discard(run_dir, made, log_from)
        raise
    except BaseException:
        _discard(run_dir, made, log_from)
        raise


def _await(
    child: subprocess.Popen[bytes], run_dir: Path, log_from: int, say: Callable[[str], None]
) -> ProcessFacts | None:
    began_s = time.monotonic()
    while True:
        code = child.poll()
        if code == 0:
            return None
        if code is not None:
            raise _not_begun(code, run_dir, log_from)
        facts = written(run_dir)
        if facts is not None and facts.pid == child.pid and facts.address is not None and alive(facts) is not None:
            return facts
        waited_s = time.monotonic() - began_s
        if waited_s > _BEGIN_S:
            raise PotluckError(
                f"reading the job and tracing its model took longer than {duration_text(_BEGIN_S)}, so it was ended; "
                "make that quicker, or train without --detach"
            )
        if waited_s > _QUIET_S and not complaint(run_dir, log_from):  # else it is about to end
            say(last_line(run_dir, log_from) or f"starting ({duration_text(waited_s)})")
        time.sleep(_EVERY_S)


def _not_begun(code: int, run_dir: Path, log_from: int) -> NotBegun:
    said = complaint(run_dir, log_from)
    if code == InputError.exit_code and said:
        return NotBegun(said, code)
    what = said or f"it ended with code {code}: {last_line(run_dir, log_from) or 'it said nothing'}"
    return NotBegun(f"{what} (all it said is in {run_dir / LOG})", code if code > 0 else PotluckError.exit_code)


@contextlib.contextmanager
def _ended_with_us(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the process if we do not get to see it begin; it may take a first and a second Ctrl-C, or have no ears."""
    try:
        yield
    except BaseException:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if child.poll() is None:
                child.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_END_S)
        raise


def _log(run_dir: Path) -> BinaryIO:
    try:
        return (run_dir / LOG).open("ab")
    except OSError as error:
        raise InputError(f"{run_dir / LOG}: cannot be written ({error.strerror}); give another --run-dir") from None


def _discard(run_dir: Path, made: Sequence[Path], log_from: int) -> None:
    """Leaves nothing of a run that never was: its only words were repeated to the user."""
    if log_from == 0 and not (run_dir / RECORDS).exists():
        (run_dir / LOG).unlink(missing_ok=True)
    remove_empty(made)


def _commands(run_dir: Path) -> dict[str, str]:
    return {verb: command(verb, run_dir) for verb in ("status", "attach", "stop")}
