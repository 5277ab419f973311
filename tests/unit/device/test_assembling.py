"""A device's next state: what it keeps, what it gets, and what it gives away meanwhile."""

from __future__ import annotations

import threading

import pytest
import torch

from potluck.compute.runner import StageState
from potluck.device.assembling import put_together
from potluck.device.keeper import Keeper
from potluck.errors import DeviceError, LinkTimeout
from potluck.tensors.state_transfer import receive_state, send_state
from potluck.types import Held, Move
from potluck.wire.messages import Prepare
from tests.unit.builders import chain
from tests.unit.memory_link import MemoryLink, memory_links

HELD = Held(term=1, stage=0, round=6)
THEIRS = Held(term=1, stage=1, round=6)


def a_state(*names: str) -> StageState:
    return StageState(
        {name: torch.full((2,), float(ord(name))) for name in names}, {}, {f"{name}/m": torch.ones(1) for name in names}
    )


def order(*moves: Move) -> Prepare:
    return Prepare(
        run="r", term=2, round=6, moves=moves, plan=chain(2), program="", peers={}, optimizer=None,  # type: ignore[arg-type]
        seed=0, clip_norm=None, own_commit=False, window_bytes=1,
    )  # fmt: skip


def keeper() -> Keeper:
    found = Keeper(lambda: None)
    found.keep(HELD, a_state("u", "v", "w"))
    return found


def move(source: str, target: str, *names: str) -> Move:
    return Move(source=source, target=target, held=HELD if source == "a" else THEIRS, names=names)


def values(state: StageState) -> dict[str, list[float]]:
    assert state.optimizer.keys() == {f"{name}/m" for name in state.parameters}
    return {name: tensor.tolist() for name, tensor in state.parameters.items()}


def test_what_stays_what_comes_and_what_goes() -> None:
    a, b = memory_links("ab", term=2)
    send_state(b, "a", 6, a_state("x"), 1.0, THEIRS)
    moves = (move("a", "a", "u"), move("b", "a", "x"), move("a", "b", "v", "w"), move("b", "c", "y"))
    found = put_together(a, order(*moves), "a", keeper(), 1.0)
    assert values(found) == values(a_state("u", "x"))
    assert values(receive_state(b, "a", 6, 1.0, HELD)) == values(a_state("v", "w"))


def test_a_device_that_only_gives_has_nothing_afterwards() -> None:
    a, b = memory_links("ab", term=2)
    assert put_together(a, order(move("a", "b", "u")), "a", keeper(), 1.0).nbytes == 0
    assert values(receive_state(b, "a", 6, 1.0, HELD)) == values(a_state("u"))


def test_what_is_not_here_cannot_be_given_and_that_is_said() -> None:
    a, _ = memory_links("ab", term=2)
    with pytest.raises(DeviceError, match="the state of stage 0 at round 6 is not here"):
        put_together(a, order(move("a", "b", "u")), "a", Keeper(lambda: None), 1.0)


def test_whoever_does_not_take_what_is_given_is_waited_for_no_longer_than_the_limit() -> None:
    over = threading.Event()

    class Stuck(MemoryLink):
        def send(self, *words: object, **more: object) -> None:
            over.wait(20.0)

    link = Stuck("a", memory_links("a")[0].post, 2)
    try:
        with pytest.raises(LinkTimeout, match="others did not take what a gives"):
            put_together(link, order(move("a", "b", "u")), "a", keeper(), 0.05)
    finally:
        over.set()
