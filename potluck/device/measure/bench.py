"""One block on this device, with random weights and inputs: what its forward, backward and update take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from potluck.compute.kernels import channels_last
from potluck.compute.our_operators import torch_constant
from potluck.compute.runner import Rows, StageRunner, StageState
from potluck.device.host.cpu_pace import CpuPace
from potluck.device.host.throttle import Throttle
from potluck.device.measure.live_bytes import meter, storage_bytes
from potluck.job.optimizers import Optimizer
from potluck.program.carve import Carver, Piece
from potluck.program.program import Program, ProgramPair, shape_of

OTHER_FLOATS = 4 * 2**20  # that are touched where other work stands between two pieces: more than caches hold
_CHUNK_S = 0.01  # a sample lasts so long: a period of a CPU quota, and sleeps of emulated devices that are exact


class LateParts(NamedTuple):
    """What becomes of a backward pass when weight gradients are put off, in parts of it; both may be more than one."""

    back: float
    weights: float
    owed_bytes: int  # kept until weight gradients are worked out


@dataclass(frozen=True)
class Rig:
    """What every block's bench needs."""

    programs: ProgramPair
    carvers: tuple[Carver, Carver]
    optimizer: Optimizer
    samples: Mapping[str, torch.Tensor]  # a few rows of every feed
    device: torch.device
    speed: float
    pace: CpuPace | None = None  # None: seconds are what the clock says

    def piece(self, block: int) -> Piece:
        return self.carvers[0].piece(*self.programs.train.block_range(block, block + 1))

    @property
    def wait(self) -> Callable[[], None]:
        """Returns once the device has done all that it was given."""
        kind = self.device.type
        if kind == "cuda":
            return torch.cuda.synchronize
        return torch.mps.synchronize if kind == "mps" else _nothing


def _nothing() -> None: ...


class _Watch:
    """Adds up seconds, as long as a device of some speed would take."""

    def __init__(self, rig: Rig) -> None:
        self._more = max(0.0, 1.0 / rig.speed - 1.0)
        self._pace = rig.pace
        self.wall_s = self.cpu_s = 0.0

    def __enter__(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.cpu_s += time.thread_time() - self._cpu
        self.wall_s += time.perf_counter() - self._started

    @property
    def seconds(self) -> float:
        """Of all that was timed so far."""
        own_s = self.wall_s if self._pace is None else self.cpu_s * self._pace.stretch
        return own_s + self.cpu_s * self._more


class Bench:
    """A stage of one block, of a run of them, or of none at all, to be run again and again."""

    def __init__(self, rig: Rig, block: int | tuple[int, int] | None) -> None:
        self._rig = rig
        one = (0, 0) if block is None or isinstance(block, tuple) else (block, block + 1)
        self.runner = random_runner(rig, block if isinstance(block, tuple) else one)
        if block is None:
            self.runner.piece = _pass_on(self.runner.piece, rig)
        self._given: dict[int, tuple[dict[int, torch.Tensor], ...]] = {}
        self._others: torch.Tensor | None = None

    def inputs(self, rows: int) -> tuple[dict[int, torch.Tensor], ...]:
        """Feeds, received values and gradients of what is sent, for so many rows."""
        if rows not in self._given:
            feeds, received = random_inputs(self._rig, self.runner.piece, rows)
            seeds = random_gradients(self._rig, self.runner.piece, rows)
            self._given = {rows: (feeds, received, seeds)}  # only the last: small devices
        return self._given[rows]

    def chunk(self, rows: int, count: int) -> tuple[float, float]:
        """Mean seconds of forward and of backward, run `count` times in a row at the emulated speed."""
        feeds, received, seeds = self.inputs(rows)
        where, rig, runner = Rows(0, 0, 0, rows), self._rig, self.runner
        forward, backward, backs = _Watch(rig), _Watch(rig), runner.has_backward
        rig.wait()
        with Throttle(rig.speed):
            began = time.perf_counter()
            for _ in range(count):
                with forward:
                    runner.forward(where, feeds, received, 1.0)
                if backs:
                    with backward:
                        runner.backward(0, 0, seeds)
            rig.wait()
            took = time.perf_counter() - began
        if rig.pace is not None:
            rig.pace.add(forward.wall_s + backward.wall_s, forward.cpu_s + backward.cpu_s)
        # A GPU is still busy when these calls return: then what all of them took until the end is theirs.
        stretch = 1.0 if rig.device.type == "cpu" else took / (forward.seconds + backward.seconds)
        return forward.seconds * stretch / count, backward.seconds * stretch / count

    def after_others(self, rows: int) -> tuple[float, float]:
        """Seconds of forward and of backward once other work has been done: caches hold none of this."""
        if self._others is None:
            self._others = torch.zeros(OTHER_FLOATS)
        self._others.add_(1.0)
        return self.chunk(rows, 1)

    def late_parts(self, rows: int, count: int, until: float) -> LateParts:
        """Of a backward pass, what is left of it when weight gradients are put off, and what those take then.

        The mean of so many passes, or of those that begin in time, one at least.
        """
        feeds, received, seeds = self.inputs(rows)
        where, runner = Rows(0, 0, 0, rows), self.runner
        whole, back, weights = (_Watch(self._rig) for _ in range(3))
        for _ in range(count):
            runner.forward(where, feeds, received, 1.0)
            with whole:
                runner.backward(0, 0, seeds)
                self._rig.wait()
            runner.late_weights = True
            runner.forward(where, feeds, received, 1.0)
            with back:
                runner.backward(0, 0, seeds)
                self._rig.wait()
            owed = runner.owed_bytes(0, 0)
            with weights:
                runner.weights(0, 0)
                self._rig.wait()
            runner.late_weights = False
            if time.monotonic() > until:
                break
        # Of a processor that others share, only its own time counts; a GPU is not a processor.
        whole_s, back_s, weights_s = (
            watch.cpu_s if self._rig.device.type == "cpu" else watch.wall_s for watch in (whole, back, weights)
        )
        return LateParts(back_s / max(whole_s, 1e-9), weights_s / max(whole_s, 1e-9), owed)

    def chunk_size(self, step_s: float) -> int:
        """How many steps of this length make a chunk."""
        return max(1, min(100, round(_CHUNK_S / max(step_s, 1e-6))))

    def update_s(self) -> float:
        """Seconds of a commit, and of the norms before it. Gradients must be there; they are put back."""
        runner, watch = self.runner, _Watch(self._rig)
        kept = runner.gradients(0)
        with Throttle(self._rig.speed), watch:
            runner.squared_norms(0, runner.trainable)
            runner.commit(0, 0.0, 1.0)  # at rate 0 the weights stay what they are
            self._rig.wait()
        runner.set_gradients(0, kept)
        return watch.seconds

    def bytes(self, rows: int) -> tuple[int, int]:
        """Bytes kept between forward and backward, and most that are alive beside them.

        What was received counts here; what is sent, where it is received: inside a longer stage it is one tensor.
        Where nothing needs a gradient, only feeds are kept, in case the round is tried again.
        """
        feeds, received, seeds = self.inputs(rows)
        runner = self.runner
        grads = [g for g in runner.gradients(0).values() if g is not None]
        given = [*feeds.values(), *received.values(), *seeds.values()]
        counted = meter(runner.device, [*given, *grads, *runner.parameters.values(), *runner.buffers.values()])
        with counted:
            sent = runner.forward(Rows(0, 0, 0, rows), feeds, received, 1.0)
            passed_on = storage_bytes(sent.values()) if sent else 0
            made = counted.now
            del sent
            arriving = runner.backward(0, 0, seeds)
            working = counted.peak - made
            del arriving
        if not runner.has_backward:
            return storage_bytes(feeds.values()), storage_bytes(received.values()) + counted.peak
        return max(0, made - passed_on) + storage_bytes([*feeds.values(), *received.values()]), max(0, working)


def _pass_on(piece: Piece, rig: Rig) -> Piece:
    """A piece that does nothing: it hands on what it receives, as a block does with one tensor."""
    values = rig.programs.train.values
    sent = [v for block in range(rig.programs.train.block_count) for v in rig.piece(block).sends]
    ends = tuple(sorted(sent, key=lambda v: not values[v].requires_grad)[:1])
    return replace(piece, receives=ends, sends=ends)


def random_runner(rig: Rig, blocks: tuple[int, int]) -> StageRunner:
    """A stage of these blocks, with random weights."""
    program = rig.programs.train
    piece = rig.carvers[0].piece(*program.block_range(*blocks))
    state = StageState(random_weights(program, piece.parameters), random_weights(program, piece.buffers))
    return StageRunner(rig.programs, blocks, state, rig.optimizer, 0, rig.device, rig.carvers)


def random_inputs(rig: Rig, piece: Piece, rows: int) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Feeds and received values of a piece, for so many rows."""
    names = {s.id: s.name for s in rig.programs.train.sources if s.kind == "input"}
    feeds = {}
    for value in piece.feeds:
        sample = rig.samples[names[value]]
        feeds[value] = sample[torch.arange(rows) % len(sample)].to(rig.device)
    return feeds, _random_values(rig, piece.receives, rows)


def random_gradients(rig: Rig, piece: Piece, rows: int) -> dict[int, torch.Tensor]:
    values = rig.programs.train.values
    return _random_values(rig, [v for v in piece.sends if values[v].requires_grad], rows)


def _random_values(rig: Rig, values: Sequence[int], rows: int) -> dict[int, torch.Tensor]:
    """In the memory order that they will have: the time of most kernels depends on it."""
    program, last = rig.programs.train, channels_last(rig.programs.train, rig.device)
    made = {}
    for value in values:
        known = program.values[value]
        tensor = _random(shape_of(known, rows), torch_constant("dtype", known.dtype)).to(rig.device)
        made[value] = tensor.contiguous(memory_format=torch.channels_last) if value in last else tensor
    return made


def random_weights(program: Program, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Random tensors of the right shapes that keep values in the range of ordinary training."""
    wanted = set(names)
    found = {}
    for source in program.sources:
        if source.name in wanted and source.kind in ("parameter", "buffer"):
            known = program.values[source.id]
            shape, dtype = shape_of(known, 1), torch_constant("dtype", known.dtype)
            tensor = _random(shape, dtype) * 0.02 if len(shape) > 1 else torch.ones(shape, dtype=dtype)
            found[source.name] = tensor.to(dtype)
    return found


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(shape, dtype=dtype)
    return torch.randn(shape).to(dtype)
