"""Profiles a model on this device, block by block, within a time that holds on any device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from potluck.compute.kernels import channels_last
from potluck.device.measure.bench import Bench, LateParts, Rig
from potluck.errors import DeviceError
from potluck.profile.cells import BlockSize, Cell, cell_order, fill, middle_mean, only
from potluck.program.blocks import value_bytes
from potluck.program.carve import has_backward
from potluck.program.signature import signature
from potluck.types import BlockProfile, Timing

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

_LEAST = 3  # samples that a figure rests on, where there is time: the fewest with a median
_ENOUGH = 40  # samples: the error of their median is a sixth of their spread, and more time helps another cell
_SURE = 0.02  # relative error of the median at which measuring goes on to the next cell
_UPDATES = 3  # samples of an update, which is the same work every time
_LATE, _LATE_PART = 2, 0.2  # times that weight gradients are put off, and the part of the time left that it may take
_CELL_FAILS = (RuntimeError, ValueError, IndexError, MemoryError)  # too large for the device, or too few rows
_FEW_FAULTS, _MOST_COLD = 32, 12  # pages of new memory that a pass may touch, and passes until it touches no more
_LEAST_COLD = 2  # of these, also where time is short: the first pass always touches new memory
_ALIKE = 1.1  # times as many: what passes touch that always need new memory
_PATIENCE = 0.05  # of the time left, for one cell beyond its share, where passes still touch new memory
_CALLS, _CALL_ROWS = 10, 2  # of nothing, to see what a call costs

_Times = tuple[float, float]  # forward, backward
Sample = tuple[_Times, int]  # and how many pages of new memory a pass touched
Progress = Callable[[int, int], None]  # cells done, cells in all


@dataclass
class Measurements:
    """What one device found out about a model."""

    cells: dict[Cell, Timing] = field(default_factory=dict)
    updates: dict[int, float] = field(default_factory=dict)
    late: dict[int, LateParts] = field(default_factory=dict)
    calls: list[_Times] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def measure_blocks(
    rig: Rig, rows: Sequence[int], budget_s: float, sizes: Sequence[float], progress: Progress = lambda done, all: None
) -> tuple[tuple[BlockProfile, ...], float]:
    """Every block at every row count, and the seconds that a call costs beside its blocks.

    The first row count comes first, for all blocks; `sizes` say which blocks matter. Cells that the budget does not
    reach are estimated from the others. Blocks that do the same work are measured once.
    """
    deadline = time.monotonic() + budget_s
    count = rig.programs.train.block_count
    twins = _twins(rig, count)
    order = cell_order(sorted(set(twins)), rows, lambda block: sizes[block] * twins.count(block))
    found = _Session(rig, rows[0], deadline, twins).run(order, progress)
    if not found.cells:
        why = found.problems[0] if found.problems else f"not one block was done in {budget_s:g} s"
        raise DeviceError(f"nothing could be measured: {why}; give more time with --profile-seconds")
    cells = {
        (block, r): found.cells[twin, r] for block, twin in enumerate(twins) for r in rows if (twin, r) in found.cells
    }
    updates = {block: found.updates[twin] for block, twin in enumerate(twins) if twin in found.updates}
    late = {block: found.late[twin] for block, twin in enumerate(twins) if twin in found.late}
    filled = fill(cells, updates, rows, [_size(rig, block, work) for block, work in enumerate(sizes)])
    profiles = tuple(
        _late(profile, late[block], rows[0]) if block in late else profile for block, profile in enumerate(filled)
    )
    return profiles, sum(_typical(found.calls)) if found.calls else 0.0


def _size(rig: Rig, block: int, work: float) -> BlockSize:
    program, piece = rig.programs.train, rig.piece(block)
    trains = [s.id for s in program.sources if s.trainable and s.name in piece.parameters]
    trainable_bytes = sum(value_bytes(program.values[value], 1) for value in trains)
    return BlockSize(work, trainable_bytes, has_backward(program, piece))


def _late(profile: BlockProfile, parts: LateParts, rows: int) -> BlockProfile:
    kept = only(profile, rows).kept_bytes
    late_kept = parts.owed_bytes / kept if kept else 1.0
    return replace(profile, late_back=parts.back, late_weights=parts.weights, late_kept=late_kept)


def retime(rig: Rig, block: int, rows: int, budget_s: float) -> Timing:
    """One cell, measured anew."""
    session = _Session(rig, rows, time.monotonic() + budget_s, list(range(rig.programs.train.block_count)))
    found = session.run([(block, rows)], lambda done, all: None)
    if (block, rows) not in found.cells:
        why = found.problems[0] if found.problems else f"it takes more than {budget_s:g} s"
        raise DeviceError(f"block {block} could not be timed again: {why}")
    return found.cells[block, rows]


def _twins(rig: Rig, count: int) -> list[int]:
    """For each block the first that does the same work."""
    first: dict[tuple[str, ...], int] = {}
    last = channels_last(rig.programs.train, rig.device)
    found = []
    for block in range(count):
        piece = rig.piece(block)
        orders = ["last" if value in last else "" for value in piece.receives]
        found.append(first.setdefault((signature(rig.programs.train, piece), *orders), block))
    return found


class _Session:
    """Works through cells until time is up."""

    def __init__(self, rig: Rig, main_rows: int, deadline: float, twins: Sequence[int]) -> None:
        self._rig, self._main_rows, self._deadline, self._twins = rig, main_rows, deadline, twins
        self._bench: tuple[int, Bench] | None = None
        self._empty = Bench(rig, None) if rig.programs.train.block_count > 1 else None
        self.found = Measurements()

    def run(self, order: Sequence[Cell], progress: Progress) -> Measurements:
        first = [block for block, rows in order if rows == self._main_rows]
        for done, (block, rows) in enumerate(order):
            progress(done, len(order))
            if done == len(first):
                self._put_off(first)
            left = self._deadline - time.monotonic()
            if left <= 0:
                break
            try:
                self._cell(block, rows, self._slot_s(left, order[done:]))
            except _CELL_FAILS as error:
                self._bench = None
                self.found.problems.append(" ".join(f"block {block}, {rows} rows: {error}".split())[:300])
        if len(order) == len(first) > 1:
            self._put_off(first)
        progress(len(order), len(order))
        return self.found

    def _slot_s(self, left_s: float, rest: Sequence[Cell]) -> float:
        """Time for the next cell: cells of the job's own micro-batch get three times as much as others."""
        weights = [3.0 if rows == self._main_rows else 1.0 for _, rows in rest]
        return left_s * weights[0] / sum(weights)

    def _cell(self, block: int, rows: int, slot_s: float) -> None:
        bench = self._open(block)
        forward_s, backward_s = self._repeat(bench, rows, time.monotonic() + slot_s)
        kept, working = bench.bytes(rows)
        self.found.cells[block, rows] = Timing(
            rows=rows, forward_s=forward_s, backward_s=backward_s, kept_bytes=kept, working_bytes=working
        )
        if block not in self.found.updates and bench.runner.trainable:
            first = bench.update_s()  # it also makes the optimizer's state
            samples = [first] if first > slot_s else [bench.update_s() for _ in range(_UPDATES)]
            self.found.updates[block] = statistics.median(samples)

    def _put_off(self, blocks: Sequence[int]) -> None:
        """What becomes of backward passes when weight gradients are put off, of as many blocks as there is time for."""
        until = time.monotonic() + _LATE_PART * (self._deadline - time.monotonic())
        for block in blocks:
            if time.monotonic() > until:
                return
            if (block, self._main_rows) in self.found.cells:
                bench = self._open(block)
                if bench.runner.can_put_off:
                    self.found.late[block] = bench.late_parts(self._main_rows, _LATE, until)

    def _open(self, block: int) -> Bench:
        """The bench of a block; only one is held at a time."""
        if self._bench is None or self._bench[0] != block:
            self._bench = None
            self._bench = (block, Bench(self._rig, block))
        return self._bench[1]

    def _warm(self, bench: Bench, rows: int, until: float) -> _Times:
        """The first pass that touches no new memory, or as much as any other: the system makes it page by page, which
        may take ten times as long as the pass, and happens once, as a device keeps all but the largest tensors."""
        faults: list[int] = []
        for _ in range(_MOST_COLD):
            before = page_faults()
            step = bench.chunk(rows, 1)
            faults.append(page_faults() - before)
            now = time.monotonic()
            if _settled(faults) or now > self._deadline or (now > until and len(faults) >= _LEAST_COLD):
                break
        return step

    def _repeat(self, bench: Bench, rows: int, until: float) -> _Times:
        """Typical seconds of forward and backward, the warm-up left out, without what a call costs.

        A longer stage pays for the call once. It is measured beside each sample, as both suffer from the same noise.
        """
        now = time.monotonic()
        patience = min(self._deadline, until + _PATIENCE * (self._deadline - now))
        first = self._warm(bench, rows, patience)
        if time.monotonic() > self._deadline:
            return first  # with its warm-up, but better than an estimate
        step_s = sum(first)
        if bench.chunk_size(step_s) > 1:
            step_s = sum(bench.chunk(rows, 1))
        count = bench.chunk_size(step_s)
        samples: list[Sample] = []
        while not samples or (time.monotonic() < end_of(samples, until, patience) and len(samples) < _ENOUGH):
            call = (0.0, 0.0) if self._empty is None else self._empty.chunk(_CALL_ROWS, max(count, _CALLS))
            self.found.calls.append(call)
            before = page_faults()
            forward_s, backward_s = bench.chunk(rows, count)
            touched = (page_faults() - before) // count
            samples.append(((forward_s - call[0], backward_s - call[1]), touched))
            if len(known := warmest(samples)) > _LEAST and _error(known) < _SURE:
                break
        forward_s, backward_s = _typical(warmest(samples))
        return max(0.0, forward_s), max(0.0, backward_s)


def warmest(samples: Sequence[Sample]) -> list[_Times]:
    """Those that touched the least new memory: in training, a device has touched all that it needs after a few rounds,
    while a block by itself meets some now and then, and spends more time on it than on its work."""
    least = min(faults for _, faults in samples)
    return [pair for pair, faults in samples if faults <= max(least + _FEW_FAULTS, _ALIKE * least)]


def end_of(samples: Sequence[Sample], until: float, patience: float) -> float:
    """When to stop: later, where few samples so far touched no new memory, but for what always needs some."""
    touched = [faults for _, faults in samples]
    warm = sum(faults <= _FEW_FAULTS for faults in touched)
    return until if warm >= _LEAST or _always(touched) else patience


def page_faults() -> int:
    """How often this process has touched new memory; 0 where the system does not count."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _settled(faults: Sequence[int]) -> bool:
    """Whether the last pass touched little new memory, or it always does."""
    return faults[-1] <= _FEW_FAULTS or _always(faults)


def _always(faults: Sequence[int]) -> bool:
    """Whether the last three passes touched as much new memory as each other."""
    last = faults[-3:]
    return len(last) == 3 and max(last) <= _ALIKE * min(last)


def _typical(samples: Sequence[_Times]) -> _Times:
    """The mean of the middle half: no outlier counts, and what a CPU quota takes now and then does."""
    return middle_mean([f for f, _ in samples]), middle_mean([b for _, b in samples])


def _error(samples: Sequence[_Times]) -> float:
    """Relative error of the typical step, from the spread of the middle half."""
    low, middle, high = statistics.quantiles([f + b for f, b in samples], n=4)
    return (high - low) / middle / len(samples) ** 0.5 if middle > 0 else 0.0
