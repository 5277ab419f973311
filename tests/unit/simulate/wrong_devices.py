"""Devices and a disk that each get one thing wrong: the simulation has to notice every one of them."""

from __future__ import annotations

from collections.abc import Iterable

from potluck.simulate.numbers_for_tensors import Numbers
from potluck.simulate.simulated_device import Device
from potluck.simulate.world import Disk
from potluck.types import Held


class ForgetsMomentum(Device):
    """Gives weights away without what the optimizer keeps."""

    def given(self, numbers: Numbers) -> Numbers:
        return {name: (weights, 1, before) for name, (weights, _, before) in numbers.items()}


class CopiesTooOld(Device):
    """Keeps a copy that is one round older than it says."""

    def copied(self, numbers: Numbers, held: Held) -> Numbers:
        return {name: self._around.expected[held.round - 1][name] for name in numbers}


class SkipsARound(Device):
    """Says that it committed a round, and did not."""

    def commit(self, numbers: Numbers, round: int) -> Numbers:
        return numbers if round == 7 and self.name == "d1" else super().commit(numbers, round)


class CommitsTwice(Device):
    """Commits a round twice."""

    def commit(self, numbers: Numbers, round: int) -> Numbers:
        once = super().commit(numbers, round)
        return super().commit(once, round) if round == 7 and self.name == "d1" else once


class TakesOldTerms(Device):
    """Uses what peers sent under a plan that is over."""

    def taken_as(self, term: int) -> int:
        return self.state.term


class KeepsItsState(Device):
    """Does not go back when the others do."""

    def put_together(self, parts: Iterable[Numbers]) -> Numbers:
        whole = super().put_together(parts)
        return whole | {name: number for name, number in self._numbers.items() if name in whole}


class UsesTheNewest(Device):
    """Computes with newer weights than the round is meant for, once they are there."""

    def commit(self, numbers: Numbers, round: int) -> Numbers:
        fresh = {name: (weights, optimizer, weights) for name, (weights, optimizer, _) in numbers.items()}
        return super().commit(fresh if round == 7 and self.name == "d1" else numbers, round)


class NeverFlushes(Disk):
    """A disk on which nothing is sure."""

    def flush_ledger(self) -> None:
        pass


WRONG_DEVICES = (ForgetsMomentum, CopiesTooOld, SkipsARound, CommitsTwice, TakesOldTerms, KeepsItsState)
