"""Our runtime on a testbed: `potluck join` on every device, and a coordinator that answers requests."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.testbed import Testbed, coordinator_address, join_all
from benchmarks.testbed.agents import environment
from benchmarks.throughput.cells import TRY_PLAN_S, Cell
from benchmarks.throughput.others import unhurried
from potluck.types import COORDINATOR

START_S = 240.0
END_S = 60.0


class Ours:
    """A context in which every device has joined."""

    def __init__(self, bed: Testbed, logs: Path, worker: str = "benchmarks.throughput.ours") -> None:
        """`worker` is the program in the coordinator's place."""
        self._bed, self._logs, self._worker = bed, logs, worker
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Ours:
        self._logs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-W", "ignore", "-m", self._worker]
        command += ["--listen", coordinator_address(self._bed), "--devices", str(len(self._bed.devices))]
        with (self._logs / "coordinator.log").open("ab") as log:
            self._coordinator = self._bed.start(
                COORDINATOR, command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        threading.Thread(target=self._listen, daemon=True).start()
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        try:
            with unhurried(self._bed):
                self._agents = join_all(self._bed, logs=self._logs)
                self._read(START_S)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._coordinator.stdin is not None
        with contextlib.suppress(OSError):
            self._coordinator.stdin.close()
        deadline = time.monotonic() + (END_S if error is None else 0.0)
        for device, process in {COORDINATOR: self._coordinator, **self._agents}.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._bed.kill(device)
                process.wait(END_S)

    def plan(
        self, cell: Cell, planners: Sequence[str], seconds: float, timeout_s: float,
        micro_batch: int | None = None, try_plan_s: float = TRY_PLAN_S,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Each planner's plan for a cell; `seconds` is how long `train` is to train. Without a size, any will do."""
        request = {
            "model": cell.model, "batch": cell.batch, "planners": planners, "seconds": seconds,
            "micro_batch": micro_batch, "try_plan_s": try_plan_s,
        }  # fmt: skip
        answers: list[dict[str, Any]] = self.ask(request, timeout_s)["answers"]
        return answers

    def train(self, planner: str, timeout_s: float) -> dict[str, Any]:
        """What training by a planner's plan came to."""
        return self.ask({"planner": planner}, timeout_s)

    def train_by(self, cell: Cell, plan: dict[str, Any], rounds: int, timeout_s: float) -> dict[str, Any]:
        """What training by a given plan came to."""
        request = {"model": cell.model, "batch": cell.batch, "given": plan, "rounds": rounds}
        return self.ask(request, timeout_s)

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """What the worker answers to a request."""
        assert self._coordinator.stdin is not None
        self._coordinator.stdin.write(json.dumps(request).encode() + b"\n")
        self._coordinator.stdin.flush()
        return self._read(timeout_s)

    def _listen(self) -> None:
        assert self._coordinator.stdout is not None
        for line in self._coordinator.stdout:
            self._lines.put(line.decode())
        self._lines.put("")

    def _read(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"our coordinator said nothing for {timeout_s:.0f} s; see {self._logs}") from None
        if not line:
            raise RuntimeError(f"our coordinator ended; see {self._logs}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = (self._logs / "coordinator.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "no word"
