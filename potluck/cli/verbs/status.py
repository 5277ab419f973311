"""`potluck status`: what a run has come to, on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from potluck.cli.display.device_lines import device_lines, parts_of
from potluck.cli.display.idle_line import idle_text
from potluck.cli.session import emit, failures_as_json
from potluck.commands.run_state import FoundRun, State, look
from potluck.commands.which_run import chosen_run, running
from potluck.coordinator.run_folder.folder_names import MODEL
from potluck.metrics.records import EvaluationRecord
from potluck.metrics.run_view import progress_text
from potluck.units import duration_text

SHOWN_INCIDENTS = 4  # the newest: with what goes before they fit on one screen
_WORDS: dict[State, str] = {
    "starting": "starting",
    "running": "running",
    "ending": "saving the model and ending the devices",
    "finished": "finished",
    "stopped": "stopped",
    "early": "stopped early, as evaluations no longer got better",
    "failed": "failed",
    "interrupted": "interrupted: its process is gone",
}


def status(run: Path | None, *, as_json: bool) -> int:
    """Shows a run, and which others are running; returns the exit code."""
    with failures_as_json(as_json):
        found = look(chosen_run(run))
        others = [] if run is not None else [look(path) for path in running() if path != found.run_dir]
    if as_json:
        emit(as_object(found) | {"others": [str(other.run_dir) for other in others]})
        return 0
    for line in status_lines(found, others):
        click.echo(line)
    return 0


def status_lines(found: FoundRun, others: Sequence[FoundRun] = ()) -> list[str]:
    """A run in words, one fact a line."""
    view, records = found.records.view, found.records
    lines = [headline(found)]
    if progress := _progress(found):
        lines.append(_fact("round", progress))
    if view.plan_reason:
        lines.append(_fact("plan", view.plan_reason))
    lines += [_fact(device, lane.where) for device, lane in view.lanes.items()]
    lines += [_fact("idle", idle_text(view.idle))] if view.idle else []
    lines += device_lines(parts_of(found.run_dir), "devices   ")
    lines += [_fact(name, text) for name, text in view.kept().items()]
    if records.incidents:
        shown = list(view.messages)[-SHOWN_INCIDENTS:]
        before = f" (the last {len(shown)} of {records.incidents})" if records.incidents > len(shown) else ""
        lines.append(_fact("incidents", f"{records.incidents}{before}"))
        lines += [_fact("", message) for message in shown]
    if found.process is not None and found.facts is not None and found.facts.address is not None:
        lines.append(_fact("address", f"{found.facts.address}, where devices join"))
    if (found.run_dir / MODEL).is_file():
        lines.append(_fact("model", str(found.run_dir / MODEL)))
    if way_on := go_on(found):
        lines.append(_fact("go on", way_on))
    return lines + (["also running"] if others else []) + [f"  {one_line(other)}" for other in others]


def headline(found: FoundRun) -> str:
    """Where it is and how it stands."""
    words = _WORDS[found.state]
    if found.seconds is not None:
        words += f"{' for' if found.process is not None else ', after'} {duration_text(found.seconds)}"
    if found.process is not None:
        words += f" (process {found.process})"
    return f"{found.run_dir}: {words}" + (f": {found.message}" if found.message else "")


def one_line(found: FoundRun) -> str:
    progress = _progress(found)
    return f"{found.run_dir}: {found.state}" + (f", round {progress}" if progress else "")


def _progress(found: FoundRun) -> str:
    """How far it is; nothing before it trains."""
    view = found.records.view
    return progress_text(view, _seconds_left(found)) if view.rounds else ""


def go_on(found: FoundRun, command: str | None = None) -> str:
    """How to go on with a run that ended before its time; nothing where there is nothing to do. `command`, if known."""
    if found.state not in ("stopped", "failed", "interrupted"):
        return ""
    if not found.records.view.rounds:
        return "nothing was trained: start again"
    if found.records.checkpoint is None:
        return "it has no checkpoint yet: start again, in another --run-dir"
    return command or f"give the command that began it once more, with --resume --run-dir {found.run_dir}"


def as_object(found: FoundRun) -> dict[str, Any]:
    view = found.records.view
    return {
        "run_dir": str(found.run_dir),
        "state": found.state,
        "message": found.message,
        "process": found.process,
        "address": found.facts.address if found.process is not None and found.facts is not None else None,
        "rounds_done": view.done,
        "rounds": view.rounds or None,
        "epoch": view.epoch + 1 if view.rounds else None,
        "epochs": view.epochs if view.rounds else None,
        "loss": view.loss,
        "evaluation": _evaluation(view.evaluation),
        "samples_per_s": view.samples_per_s(),
        "seconds": found.seconds,
        "seconds_left": _seconds_left(found),
        "plan": view.plan_reason or None,
        "devices": {device: lane.where for device, lane in view.lanes.items()},
        "idle": msgspec.to_builtins(view.idle),
        "device_parts": msgspec.to_builtins(parts_of(found.run_dir)),
        "incidents": found.records.incidents,
        "last_incidents": list(view.messages)[-SHOWN_INCIDENTS:],
        "checkpoint": found.records.checkpoint,
        "model": str(found.run_dir / MODEL) if (found.run_dir / MODEL).is_file() else None,
        "go_on": go_on(found) or None,
    }


def _seconds_left(found: FoundRun) -> float | None:
    return found.records.view.seconds_left(found.records.now_s) if found.state == "running" else None


def _evaluation(record: EvaluationRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {**record.metrics, "loss": record.loss, "round": record.round, "best": record.best}


def _fact(name: str, text: str) -> str:
    return f"{name:<10} {text}"
