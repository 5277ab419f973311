"""Copies between two devices' links, and what they say of their cost."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest
import torch

from potluck.compute.runner import StageState
from potluck.device import copier as copying
from potluck.device.copier import Copier
from potluck.device.keeper import Keeper
from potluck.types import CopyLine, Held
from potluck.wire.zmq_link import ZmqLink

Told = tuple[Held, StageState, float]


@pytest.fixture
def links() -> Iterator[tuple[ZmqLink, ZmqLink]]:
    a, b = ZmqLink("a"), ZmqLink("b")
    a.adopt(1, {"b": b.address})
    b.adopt(1, {"a": a.address})
    yield a, b
    a.close()
    b.close()


def copier(held: Held, state: StageState, told: queue.Queue[Told]) -> Copier:
    keeper = Keeper(lambda: held)
    keeper.train(lambda: state)
    return Copier(keeper, lambda *words: told.put(words), timeout_s=20.0)


def test_a_guardian_has_the_same_numbers_and_both_say_what_it_cost(links: tuple[ZmqLink, ZmqLink]) -> None:
    state = StageState({"w": torch.randn(1000, 1000).t()}, {"b": torch.arange(3)}, {"w/m": torch.randn(1000, 1000)})
    first, second = (Held(term=1, stage=stage, round=4, live=True) for stage in (0, 1))
    at_a: queue.Queue[Told] = queue.Queue()
    at_b: queue.Queue[Told] = queue.Queue()
    giver, guardian = copier(first, state, at_a), copier(second, StageState({}, {}), at_b)
    kept = Held(term=1, stage=0, round=4)
    guardian.copy(links[1], Held(term=1, stage=1, round=4), None, {"a": kept}, None)
    giver.copy(links[0], kept, "b", {}, CopyLine(1e9, shared=False, part=0.1))
    assert at_b.get(timeout=20)[0].stage == 1  # its own, at once
    held, arrived, cost_s = at_b.get(timeout=20)
    assert held == kept
    assert arrived.nbytes == state.nbytes == 8_000_024
    for mine, theirs in ((state.parameters, arrived.parameters), (state.optimizer, arrived.optimizer)):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[k], theirs[k]) and mine[k].stride() == theirs[k].stride() for k in mine)
    carried_s = 8e6 * 1.2e-9
    assert at_a.get(timeout=20)[2] > 0
    assert carried_s < cost_s < 20
    giver.close()
    guardian.close()


def test_the_first_copy_takes_half_of_what_training_left_idle_so_far(
    links: tuple[ZmqLink, ZmqLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float | None] = []
    monkeypatch.setattr(copying, "send_state", lambda *_, bytes_s, **__: rates.append(bytes_s))
    told: queue.Queue[Told] = queue.Queue()
    live, held = Held(term=1, stage=0, round=4, live=True), Held(term=1, stage=0, round=4)
    state = StageState({"w": torch.zeros(8)}, {})
    line = CopyLine(1e9, shared=False, part=0.1)
    for begins in (False, True):
        giver = copier(live, state, told)
        if begins:
            giver.training(links[0])
            giver.training(links[0])  # the next round
        giver.copy(links[0], held, "b", {}, line)
        giver._pool.shutdown(wait=True)
    assert rates[0] == pytest.approx(1e8)  # a tenth: nobody knows what is idle
    assert rates[1] is not None
    assert rates[1] == pytest.approx(5e8, rel=0.01)
