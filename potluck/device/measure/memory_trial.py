"""A short rehearsal of training, to see how much memory a device really takes for what the model needs.

What tensors need can be counted; what the process takes for them cannot: kernels keep code and scratch space, and the
allocator keeps holes between tensors of different lives. Both differ from model to model and from machine to machine,
and neither with how fast a machine is: a slow one rehearses briefly, or leaves it to a faster one of its kind.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

from potluck.compute.runner import Rows, StageRunner
from potluck.device.measure.bench import Rig, random_gradients, random_inputs, random_runner
from potluck.plan.cost.resident import IN_FLIGHT

_STEP = 3  # times as long as a forward pass alone: backward takes twice that


class Extent(NamedTuple):
    """How much is trained in a rehearsal. The optimizer makes its state in the first round, so it takes two."""

    rounds: int
    micro_batches: int  # of each round

    @property
    def steps(self) -> int:
        return self.rounds * self.micro_batches


FULL, BRIEF = Extent(3, 4), Extent(2, IN_FLIGHT)


class TooSlow(Exception):
    """Even a brief rehearsal would take too long."""


class MemoryTrials:
    """Rehearsals of some runs of blocks, all of one extent: what the first forward pass says there is time for."""

    def __init__(self, rig: Rig, rows: int, most_s: float) -> None:
        """`most_s` is the longest that each may take."""
        self._rig, self._rows, self._most_s = rig, rows, most_s
        self.extent: Extent | None = None  # not known before the first

    def grown_bytes(self, blocks: tuple[int, int]) -> int | None:
        """Bytes by which this process grows at most while it trains these blocks; None where that cannot be told.

        Raises TooSlow.
        """
        if self._rig.device.type != "cpu" or sys.platform != "linux":
            return None
        _give_back()
        before = _memory()["RssAnon"]
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
            self._train(blocks)
            now = _memory()
            return max(0, now["VmHWM"] - now["RssFile"] - before)
        return None

    def _train(self, blocks: tuple[int, int]) -> None:
        rig, runner = self._rig, random_runner(self._rig, blocks)
        began = time.monotonic()
        self._forward(runner, 0, 0)
        self.extent = self.extent or extent_for(_STEP * (time.monotonic() - began), self._most_s)
        for round in range(self.extent.rounds):
            for j in range(self.extent.micro_batches + IN_FLIGHT - 1):
                if j < self.extent.micro_batches and (round, j) != (0, 0):
                    self._forward(runner, round, j)
                if j >= IN_FLIGHT - 1:
                    runner.backward(round, j - IN_FLIGHT + 1, random_gradients(rig, runner.piece, self._rows))
            with torch.no_grad():
                runner.commit(round, 0.0, 1.0)

    def _forward(self, runner: StageRunner, round: int, j: int) -> None:
        feeds, received = random_inputs(self._rig, runner.piece, self._rows)
        runner.forward(Rows(round, j, 0, self._rows), feeds, received, 1.0)


def extent_for(step_s: float, most_s: float) -> Extent:
    """What there is time for, given what a forward and a backward pass take; raises TooSlow."""
    for extent in (FULL, BRIEF):
        if extent.steps * step_s <= most_s:
            return extent
    raise TooSlow


def _give_back() -> None:
    """Returns free memory to the system: what an earlier rehearsal left would hide what this one takes."""
    with contextlib.suppress(AttributeError, OSError):  # only the GNU library can
        ctypes.CDLL(None).malloc_trim(0)


def _memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
