"""The command line as a user has it: real processes in a folder of their own, all ended with the test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0

JOB = """
import potluck, torch
from torch import nn
from potluck.datasets.digits import digits
images, labels, _, _ = (torch.from_numpy(a) for a in digits())
job = potluck.Job(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    loss=nn.functional.cross_entropy, optimizer=potluck.SGD(lr=0.1), data=(images, labels), batch_size=50,
    rounds=ROUNDS,
)
"""


class Potluck:
    """Starts potluck in a folder of its own, with a mark by which its whole family is found again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"potluck-test-{os.getpid()}-{folder.name}"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("POTLUCK_")},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TEST_MARK": self.mark,
        }

    def __enter__(self) -> Potluck:
        return self

    def __exit__(self, *error: object) -> None:
        left = self.alive()
        for process in left:
            process.kill()
        assert not left, "processes were left behind"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "potluck", *arguments],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def alive(self) -> list[psutil.Process]:
        """Processes started by us, directly or not, that have not ended."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TEST_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def job(self, rounds: int) -> str:
        (self.folder / "job.py").write_text(JOB.replace("ROUNDS", str(rounds)))
        return "job.py"


def wait_for_line(process: subprocess.Popen[str], start: str) -> list[str]:
    """Reads standard error up to a line that starts like this; the process's own deadlines end the wait."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith(start):
            return seen
    raise AssertionError(f"it ended without a line {start!r}: {seen}")
