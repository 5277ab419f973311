"""Where a benchmark runs and with what code, whether it can run there, and what its small programs say."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.testbed import Testbed, TestbedMissing, check_machine
from benchmarks.testbed.agents import environment
from benchmarks.throughput.cells import Cell
from potluck.errors import PotluckError

NO_TRANSFORMERS = (
    "the models of the benchmark need transformers: run make setup, or pip install -c constraints.txt '.[hf]'"
)


class WrongInput(click.ClickException):
    """One line about what was given; ends with code 2, as wrong options do."""

    exit_code = 2


def machine() -> dict[str, Any]:
    """Where this was measured."""
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "date": time.strftime("%Y-%m-%d"),
    }


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself, with the numbers that tell generations apart; "" where nobody says."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    words = [told.get("vendor_id", ""), told.get("model name", "")]
    numbers = [f"{what} {told[key]}" for what, key in (("family", "cpu family"), ("model", "model")) if key in told]
    return ", ".join(word for word in (" ".join(words).strip(), *numbers) if word)


def commit() -> str:
    """Which code this is, "-dirty" if it was changed since; "" outside a checkout. Results are no code."""
    try:
        name = _git("describe", "--always")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/benchmarks/results")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{name}-dirty" if changed else name


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def check_here() -> None:
    """Ends with one line if a testbed cannot run here, or the models cannot be built."""
    try:
        check_machine()
    except TestbedMissing as error:
        raise click.ClickException(str(error)) from None
    if importlib.util.find_spec("transformers") is None:
        raise click.ClickException(NO_TRANSFORMERS)


def check_fleets(cells: Iterable[Cell]) -> None:
    """Ends with one line if this machine cannot have the devices of any cell: before others take hours."""
    for file in dict.fromkeys(cell.fleet_file for cell in cells):
        try:
            Testbed(file)
        except PotluckError as error:
            raise WrongInput(str(error)) from None


def told_by(program: Sequence[str], timeout_s: float) -> Any:
    """The JSON that a module with its options ends with; where it fails, its last line is all that is shown."""
    command = [sys.executable, "-W", "ignore", "-m", *program]
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=True)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        raise click.ClickException(f"{program[0]} failed: {lines[-1] if lines else 'no word'}") from None
    except subprocess.TimeoutExpired:
        raise click.ClickException(f"{program[0]} took longer than {timeout_s:.0f} s") from None
    return json.loads(done.stdout.splitlines()[-1])


def transport_cost() -> tuple[float, float]:
    """CPU seconds for each GB moved, by our link and by Gloo."""
    found = told_by(["benchmarks.peers.gloo_cost", "--json", "--megabytes", "400"], 300)
    return float(found["cpu_s_per_gb"]), float(found["gloo_cpu_s_per_gb"])
