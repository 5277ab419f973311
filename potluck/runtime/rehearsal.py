"""A short rehearsal of training, to see how much memory a device really takes for what the model needs.

What tensors need can be counted; what the process takes for them cannot: kernels keep code and scratch space, and the
allocator keeps holes between tensors of different lives. Both differ from model to model and from machine to machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

import torch

from potluck.runtime.bench import Rig, random_gradients, random_inputs, random_weights
from potluck.runtime.stage import Rows, StageRunner, StageState

IN_FLIGHT = 2  # micro-batches between forward and backward
_ROUNDS, _MICRO_BATCHES = 3, 4


def rehearse(rig: Rig, blocks: tuple[int, int], rows: int) -> int | None:
    """Bytes by which this process grew at most while it trained these blocks; None where that cannot be told."""
    if rig.device.type != "cpu" or sys.platform != "linux":
        return None
    _give_back()
    before = _memory()["RssAnon"]
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        _train(rig, blocks, rows)
        now = _memory()
        return max(0, now["VmHWM"] - now["RssFile"] - before)
    return None


def _train(rig: Rig, blocks: tuple[int, int], rows: int) -> None:
    program = rig.programs.train
    piece = rig.carvers[0].piece(*program.block_range(*blocks))
    state = StageState(random_weights(program, piece.parameters), random_weights(program, piece.buffers))
    runner = StageRunner(rig.programs, blocks, state, rig.optimizer, 0, rig.device, rig.carvers)
    del state
    for round in range(_ROUNDS):
        for j in range(_MICRO_BATCHES + IN_FLIGHT - 1):
            if j < _MICRO_BATCHES:
                feeds, received = random_inputs(rig, runner.piece, rows)
                runner.forward(Rows(round, j, 0, rows), feeds, received, 1.0)
                del feeds, received
            if j >= IN_FLIGHT - 1:
                runner.backward(j - IN_FLIGHT + 1, random_gradients(rig, runner.piece, rows))
        with torch.no_grad():
            runner.commit(0.0, 1.0)


def _give_back() -> None:
    """Returns free memory to the system: what an earlier rehearsal left would hide what this one takes."""
    with contextlib.suppress(AttributeError, OSError):  # only the GNU library can
        ctypes.CDLL(None).malloc_trim(0)


def _memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
