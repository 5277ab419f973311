"""One device's part in summing gradients, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.plan.cost.traffic import Messages
from potluck.plan.events.simulated_steps import SimulatedStep, SummingSteps

GROUP = ("a", "b", "c")
BUCKETS = [SimpleNamespace(adder="a", size_bytes=10), SimpleNamespace(adder="b", size_bytes=20)]


class Traffic:
    """Messages that cost a second each, between three devices; nothing is tied."""

    def buckets(self, device: str) -> list[Any]:
        return BUCKETS

    def group(self, device: str) -> tuple[str, ...]:
        return GROUP

    def bucket(self, phase: str, bucket: Any, source: str, target: str) -> Any:
        return SimpleNamespace(source=source, target=target, size_bytes=bucket.size_bytes)

    def handling_s(self, device: str, parcels: Iterable[Any]) -> float:
        return float(len(list(parcels)))

    def tied(self, device: str, phase: str) -> tuple[list[Any], list[Any]]:
        return [], []


@pytest.fixture
def arrived() -> dict[tuple[object, ...], float]:
    return {}


@pytest.fixture
def steps(arrived: dict[tuple[object, ...], float]) -> SummingSteps:
    return SummingSteps("a", 3, cast(Messages, Traffic()), arrived)


def told(found: Iterable[SimulatedStep]) -> list[tuple[str, list[object], list[object]]]:
    """Kind, what is awaited from whom, what is sent to whom."""
    return [(s.kind, [(k[0], k[3]) for k in s.needs], [(k[0], k[4]) for k, _ in s.sends]) for s in found]


def test_what_another_adds_up_is_sent_to_it_and_what_is_its_own_is_not(steps: SummingSteps) -> None:
    assert told(steps.offer(0, 7)) == []
    [step] = steps.offer(1, 7)
    assert told([step]) == [("backward", [], [("reduce", "b")])]
    assert (step.round, step.micro_batch, step.seconds) == (3, 7, 1.0)


def test_sums_are_made_once_when_everybodys_part_is_there_by_now(
    steps: SummingSteps, arrived: dict[tuple[object, ...], float]
) -> None:
    arrived["reduce", 3, 0, "b", "a"] = 1.0
    arrived["reduce", 3, 0, "c", "a"] = 2.0
    assert told(steps.poll(7, 9.0)) == []  # its own part is not there
    list(steps.offer(0, 7))
    assert told(steps.poll(7, 1.5)) == []
    assert told(steps.poll(7, 2.0)) == [
        ("backward", [("reduce", "b"), ("reduce", "c")], []),
        ("backward", [], [("sum", "b"), ("sum", "c")]),
    ]
    assert told(steps.poll(7, 9.0)) == []


def test_at_the_end_the_rest_is_sent_added_up_and_awaited(steps: SummingSteps) -> None:
    list(steps.offer(0, 7))
    assert [step for step in told(steps.finish(7)) if step[1] or step[2]] == [
        ("backward", [], [("reduce", "b")]),
        ("reduce", [("reduce", "b"), ("reduce", "c")], []),
        ("reduce", [], [("sum", "b"), ("sum", "c")]),
        ("reduce", [("sum", "b")], []),
    ]
