"""A short rehearsal of training, to see how much memory a device really takes for what the model needs.

What tensors need can be counted; what the process takes for them cannot: kernels keep code and scratch space, and the
allocator keeps holes between tensors of different lives. Both differ from model to model and from machine to machine,
and neither with how fast a machine is: a slow one rehearses briefly, or leaves it to a faster one of its kind.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

from potluck.runtime.bench import Rig, random_gradients, random_inputs, random_weights
from potluck.runtime.stage import Rows, StageRunner, StageState

IN_FLIGHT = 2  # micro-batches between forward and backward
_ROUNDS, _MICRO_BATCHES = 3, 4
_STEP = 3  # times as long as a forward pass alone


class Grown(NamedTuple):
    """What a rehearsal showed, and how much of a rehearsal it was."""

    grown_bytes: int
    micro_batches: int  # that were trained


def rehearse(rig: Rig, blocks: tuple[int, int], rows: int, most_s: float = math.inf) -> Grown | None:
    """Bytes by which this process grew at most while it trained these blocks; None where that cannot be told, or would
    take longer than `most_s` even briefly."""
    if rig.device.type != "cpu" or sys.platform != "linux":
        return None
    _give_back()
    before = _memory()["RssAnon"]
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        trained = _train(rig, blocks, rows, most_s)
        now = _memory()
        return Grown(max(0, now["VmHWM"] - now["RssFile"] - before), trained) if trained else None
    return None


def _train(rig: Rig, blocks: tuple[int, int], rows: int, most_s: float) -> int:
    """Trains a few rounds, or a brief one, as the first forward pass says there is time for; how many micro-batches."""
    program = rig.programs.train
    piece = rig.carvers[0].piece(*program.block_range(*blocks))
    state = StageState(random_weights(program, piece.parameters), random_weights(program, piece.buffers))
    runner = StageRunner(rig.programs, blocks, state, rig.optimizer, 0, rig.device, rig.carvers)
    del state

    def forward(round: int, j: int) -> None:
        feeds, received = random_inputs(rig, runner.piece, rows)
        runner.forward(Rows(round, j, 0, rows), feeds, received, 1.0)

    began = time.monotonic()
    forward(0, 0)
    rounds, count = _time_for(_STEP * (time.monotonic() - began), most_s)
    for round in range(rounds):
        for j in range(count + IN_FLIGHT - 1):
            if j < count and (round, j) != (0, 0):
                forward(round, j)
            if j >= IN_FLIGHT - 1:
                runner.backward(j - IN_FLIGHT + 1, random_gradients(rig, runner.piece, rows))
        with torch.no_grad():
            runner.commit(0.0, 1.0)
    return rounds * count


def _time_for(step_s: float, most_s: float) -> tuple[int, int]:
    """Rounds, and micro-batches of each, given what one takes."""
    for rounds, count in ((_ROUNDS, _MICRO_BATCHES), (1, IN_FLIGHT)):
        if rounds * count * step_s <= most_s:
            return rounds, count
    return 0, 0


def _give_back() -> None:
    """Returns free memory to the system: what an earlier rehearsal left would hide what this one takes."""
    with contextlib.suppress(AttributeError, OSError):  # only the GNU library can
        ctypes.CDLL(None).malloc_trim(0)


def _memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
