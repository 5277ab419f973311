"""Sample order: which samples each round uses, as a pure function of (seed, epoch, round).

The order of an epoch is the stable argsort of `count` raw 64-bit words of numpy's Philox generator, seeded with
SeedSequence([seed, epoch]). numpy promises that bit streams and seed sequences never change between versions, which it
does not promise of `permutation` and `shuffle`; so anyone can recompute the order of an old run, as `control/audit.py`
does.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from potluck.errors import InputError


def epoch_order(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    """The sample ids 0..count in the order in which an epoch uses them."""
    words = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """A 64-bit seed for making one sample of one epoch, independent of every other sample's."""
    # The spawn key keeps these apart from the epoch's own sequence: plain entropy is padded with zeros, so
    # [seed, epoch, 0] and [seed, epoch] would be the same sequence.
    sequence = np.random.SeedSequence([seed, epoch], spawn_key=(sample,))
    return int(sequence.generate_state(1, np.uint64)[0])


class RoundSamples(NamedTuple):
    """The samples of one round."""

    epoch: int
    index_in_epoch: int  # of the round
    ids: tuple[int, ...]  # in order; fewer than a batch at the end of an epoch


class SampleOrder:
    """Every epoch all samples once, in an order of its own; the last, partial batch of an epoch is kept."""

    def __init__(
        self, *, seed: int, count: int, batch_size: int, epochs: int | None = None, rounds: int | None = None
    ) -> None:
        if (epochs is None) == (rounds is None):
            raise InputError(f"sample order: epochs {epochs} and rounds {rounds}; give exactly one of the two")
        for name, value in (("count", count), ("batch_size", batch_size), ("epochs", epochs), ("rounds", rounds)):
            if value is not None and value < 1:
                raise InputError(f"sample order: {name} {value}; give at least 1")
        self.seed, self.count, self.batch_size = seed, count, batch_size
        self.rounds_per_epoch = -(-count // batch_size)
        self.rounds = rounds if rounds is not None else self.rounds_per_epoch * (epochs or 0)
        self._kept: dict[int, npt.NDArray[np.int64]] = {}  # orders of the epochs asked for last

    @property
    def epochs(self) -> int:
        """How many epochs are begun; with a given number of rounds the last one may stay incomplete."""
        return -(-self.rounds // self.rounds_per_epoch)

    def round(self, round: int) -> RoundSamples:
        _check_round(round, self.rounds)
        epoch, index = divmod(round, self.rounds_per_epoch)
        ids = self._order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        return RoundSamples(epoch, index, tuple(ids.tolist()))

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        # Two epochs, because loading ahead looks past the end of the one being trained. A local variable, because the
        # loader's thread may replace the dictionary's content at the same time.
        order = self._kept.get(epoch)
        if order is None:
            order = epoch_order(self.seed, epoch, self.count)
            self._kept = {**dict(list(self._kept.items())[-1:]), epoch: order}
        return order


class PlainOrder:
    """All samples once, 0, 1, 2, …: the order of an evaluation."""

    def __init__(self, *, count: int, batch_size: int) -> None:
        if count < 1 or batch_size < 1:
            raise InputError(f"evaluation order: count {count}, batch_size {batch_size}; give at least 1 of each")
        self.count, self.batch_size = count, batch_size
        self.rounds = -(-count // batch_size)

    def round(self, round: int) -> RoundSamples:
        _check_round(round, self.rounds)
        start = round * self.batch_size
        return RoundSamples(0, round, tuple(range(start, min(start + self.batch_size, self.count))))


DataOrder: TypeAlias = SampleOrder | PlainOrder  # of both, any round may be asked for at any time, and again


def _check_round(round: int, rounds: int) -> None:
    if not 0 <= round < rounds:
        raise IndexError(f"round {round} of {rounds}")
