"""What suits a plain trainer of a model: sizes of micro-batches and the order of images in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.one_core import CHANNELS_LAST, USUAL
from benchmarks.throughput.cells import Cell
from benchmarks.throughput.machine import told_by

TIMEOUT_S = 400.0
BRIEF_S = 6.0  # as long as a burst of plain trainers is to last
ALIKE = 0.97  # of the fastest: what two trials of one size differ by


@dataclass(frozen=True)
class Told:
    """What a trainer is told."""

    micro_batch: int
    order: str

    @property
    def options(self) -> tuple[str, ...]:
        """As words of a command."""
        return ("--channels-last",) if self.order == CHANNELS_LAST else ()


@dataclass(frozen=True)
class OneCore:
    """Samples per second of a plain trainer on a whole core: order of images, then size of micro-batches."""

    rates: Mapping[str, Mapping[int, float]]

    @property
    def ideal_size(self) -> int:
        """The smallest that is as fast as any, in PyTorch's own order: a slow device takes long for a large one."""
        usual = self.rates[USUAL]
        return min(size for size, rate in usual.items() if rate >= ALIKE * max(usual.values()))

    def brief_size(self, speed: float) -> int:
        """The largest, up to the ideal one, that a device of so much of a core is through with soon."""
        known = {size: rate for size, rate in self.rates[USUAL].items() if size <= self.ideal_size}
        return max((size for size, rate in known.items() if size / (rate * speed) <= BRIEF_S), default=min(known))

    def fastest(self, sizes: Sequence[int]) -> Told:
        """The best of these sizes and of both orders: users of DDP and pipelining get channels last for one line, so
        they have what is faster at their sizes; the ideal is plain PyTorch."""
        found = {Told(size, order): r for order, by_size in self.rates.items() for size, r in by_size.items()}
        return max((told for told in found if told.micro_batch in sizes), key=lambda told: found[told])

    def promising(self, sizes: Sequence[int], batch: int, stages: int) -> tuple[int, ...]:
        """Sizes for a pipeline that divide the batch, the most promising first: small ones leave less idle, large ones
        go quicker. Where none of these does, any that was measured."""
        known = self.rates[USUAL]
        sizes = [size for size in sizes if size in known] or [size for size in known if batch // size >= stages]

        def expected(size: int) -> float:
            count = batch // size
            best = max(by_size.get(size, 0.0) for by_size in self.rates.values())
            return best * count / (count + stages - 1)

        return tuple(sorted(sizes, key=expected, reverse=True))

    @property
    def channels_last_gain(self) -> float:
        """What the other order is worth, each at its best size."""
        return max(self.rates.get(CHANNELS_LAST, self.rates[USUAL]).values()) / max(self.rates[USUAL].values())


def one_core(cell: Cell) -> OneCore:
    """Measures a cell's model on one core."""
    found = told_by(["benchmarks.peers.one_core", "--model", cell.model, "--batch", str(cell.batch)], TIMEOUT_S)
    return OneCore({order: {int(size): rate for size, rate in some.items()} for order, some in found.items()})
