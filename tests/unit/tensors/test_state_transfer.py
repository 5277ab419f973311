"""A state goes over a link and is the same on the other side; whatever is damaged on the way is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
import torch

from potluck.compute.runner import StageState
from potluck.errors import LinkError, LinkTimeout
from potluck.tensors.state_transfer import receive_state, send_state, state_tag
from potluck.types import Held
from potluck.wire.link import Buffer, Tag
from tests.unit.memory_link import MemoryLink, memory_links

HELD = Held(term=4, stage=1, round=9)
ROUND = 9


def a_state(elements: int = 7) -> StageState:
    torch.manual_seed(0)
    weight = torch.randn(elements, 3)
    return StageState(
        {"w": weight.t(), "empty": torch.zeros(0, 2)},
        {"count": torch.tensor(5), "half": torch.ones(3, dtype=torch.float16)},
        {"w/m": torch.randn(3, elements), "w/step": torch.tensor(2.0)},
    )


def same(left: StageState, right: StageState) -> bool:
    parts = ("parameters", "buffers", "optimizer")
    pairs = [(getattr(left, part), getattr(right, part)) for part in parts]
    return all(
        list(mine) == list(theirs)
        and all(torch.equal(mine[n], theirs[n]) and mine[n].dtype == theirs[n].dtype for n in mine)
        and all(mine[n].stride() == theirs[n].stride() for n in mine if mine[n].numel() > 1)
        for mine, theirs in pairs
    )


@pytest.mark.parametrize(
    ("state", "held"),
    [(a_state(), HELD), (a_state(), None), (StageState({}, {}), HELD), (a_state(700_000), HELD)],
    ids=["small", "reported", "nothing", "in several chunks and pieces"],
)
@pytest.mark.parametrize("fixed", [True, False])
def test_what_is_sent_arrives_with_its_memory_order(state: StageState, held: Held | None, fixed: bool) -> None:
    a, b = memory_links("ab")
    send_state(a, "b", ROUND, state, 1.0, held, fixed=fixed)
    assert same(receive_state(b, "a", ROUND, 1.0, held), state)
    assert not any(b.post.values())
    assert max(size for _, _, size in a.sent) <= 4 * 2**20


def test_training_may_change_what_is_still_on_its_way() -> None:
    class Slow(MemoryLink):
        """Copies nothing, as a real one, and takes its time."""

        def send(self, peer: str, tag: Tag, parts: Sequence[Buffer], timeout_s: float, term: int | None = None) -> None:
            under_way.append((tag, parts))

    under_way: list[tuple[Tag, Sequence[Buffer]]] = []
    a, b = memory_links("ab")
    state = a_state()
    send_state(Slow("a", a.post), "b", ROUND, state, 1.0, HELD)
    for tensor in (*state.parameters.values(), *state.buffers.values(), *state.optimizer.values()):
        tensor.zero_()
    for tag, parts in under_way:
        a.send("b", tag, parts, 1.0)
    assert same(receive_state(b, "a", ROUND, 1.0, HELD), a_state())


def test_a_state_is_asked_for_by_what_it_is() -> None:
    tags = [
        state_tag(ROUND, held, 0)
        for held in (
            None, HELD, Held(term=5, stage=1, round=9), Held(term=4, stage=0, round=9), Held(term=0, stage=-1, round=9),
        )
    ]  # fmt: skip
    assert len({*tags, state_tag(ROUND, HELD, 1), state_tag(8, HELD, 0)}) == 7
    a, b = memory_links("ab")
    send_state(a, "b", ROUND, a_state(), 1.0, HELD)
    with pytest.raises(LinkTimeout):
        receive_state(b, "a", ROUND, 1.0, Held(term=4, stage=0, round=9))


def test_at_a_slow_pace_the_pieces_are_small() -> None:
    a, b = memory_links("ab")
    state = StageState({"w": torch.zeros(1_000_000)}, {})
    send_state(a, "b", ROUND, state, 1.0, HELD, bytes_s=1e12)
    assert max(size for _, _, size in a.sent) == 4_000_000
    assert same(receive_state(b, "a", ROUND, 1.0, HELD), state)
    a.sent.clear()
    send_state(a, "b", ROUND, StageState({"w": torch.zeros(150_000)}, {}), 1.0, HELD, bytes_s=2e6)
    assert sorted(size for _, _, size in a.sent)[-2:] == [600_000 - 512 * 1024, 512 * 1024]


def test_a_named_term_is_used_in_place_of_the_one_in_force() -> None:
    a, b = memory_links("ab", term=3)
    send_state(a, "b", ROUND, a_state(), 1.0, HELD, term=2)
    with pytest.raises(LinkTimeout):
        receive_state(b, "a", ROUND, 1.0, HELD)
    assert same(receive_state(b, "a", ROUND, 1.0, HELD, term=2), a_state())


Damage = Callable[[list[list[bytes]]], None]


def _flip(messages: list[list[bytes]]) -> None:
    piece = bytearray(messages[1][0])
    piece[5] ^= 1
    messages[1][0] = bytes(piece)


def _no_head(messages: list[list[bytes]]) -> None:
    messages[0][0] = b"\xc1"


def _one_part(messages: list[list[bytes]]) -> None:
    del messages[0][1]


def _longer(messages: list[list[bytes]]) -> None:
    messages[1].append(b"x" * 100)


def _head(place: int, value: object) -> Damage:
    def change(messages: list[list[bytes]]) -> None:
        head = msgspec.msgpack.decode(messages[0][0])
        head[place] = value
        messages[0][0] = msgspec.msgpack.encode(head)

    return change


@pytest.mark.parametrize(
    "damage",
    [_flip, _no_head, _one_part, _longer, _head(0, [("parameters", "w")]), _head(0, [("secrets", "w")] * 6),
     _head(1, [-1]), _head(1, [2**50])],
    ids=["a bit", "no head", "a part less", "too long", "a name less", "no such part", "negative", "enormous"],
)  # fmt: skip
def test_what_is_damaged_is_refused_with_its_sender(damage: Damage) -> None:
    a, b = memory_links("ab")
    send_state(a, "b", ROUND, a_state(), 1.0, HELD)
    tags: list[Tag] = [tag for _, tag, _ in a.sent]
    waiting = [b.post["a", "b", tag, 1] for tag in tags]
    damage([one[0] for one in waiting])
    with pytest.raises(LinkError, match=r"arrived from a.*the link is broken"):
        receive_state(b, "a", ROUND, 1.0, HELD)
