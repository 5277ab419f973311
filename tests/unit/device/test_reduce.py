"""Members of a group add up their gradients, and all have the same bits afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from potluck.compute.running_buffers import Statistic
from potluck.device.stage.reduce import Reducer
from potluck.device.stage.sums import ParameterBucket, Sums
from potluck.errors import LinkTimeout
from tests.unit.memory_link import MemoryLink, memory_links

NAMES = ("w", "v", "u")
HOLDERS = ("a", "b", "c")
FIRST = ParameterBucket(0, "c", HOLDERS, ("w", "v"), statistics=True)
SECOND = ParameterBucket(1, "a", HOLDERS, ("u",))
OTHERS = ParameterBucket(2, "x", ("x", "y"), ("elsewhere",))
SUMS = Sums((FIRST, SECOND, OTHERS))
ROUND = 4


class Stage:
    """As much of a stage as sums are about."""

    def __init__(self, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.device = torch.device("cpu")
        self.parameters = {name: torch.zeros(3) for name in NAMES}
        for parameter in self.parameters.values():
            parameter.grad = torch.randn(3, generator=random)
        self.running = SimpleNamespace(statistics={ROUND: {(0, 0): Statistic(torch.tensor([float(seed)]), 1)}})
        self.versions = SimpleNamespace(for_step=lambda round: self.parameters)

    def set_gradients(self, round: int, gradients: Mapping[str, torch.Tensor | None]) -> None:
        for name, gradient in gradients.items():
            self.parameters[name].grad = gradient

    @property
    def gradients(self) -> dict[str, list[float] | None]:
        return {n: None if p.grad is None else p.grad.tolist() for n, p in self.parameters.items()}


def members() -> tuple[list[Stage], list[Reducer], list[MemoryLink]]:
    stages, links = [Stage(seed) for seed in (1, 2, 3)], memory_links(HOLDERS)
    sites = [
        cast(Any, SimpleNamespace(me=link.name, stage=stage, link=link, timeout_s=1.0))
        for stage, link in zip(stages, links, strict=True)
    ]
    return stages, [Reducer(site, SUMS) for site in sites], links


def added_up(stages: list[Stage]) -> dict[str, list[float]]:
    """In the order of the holders: floating-point addition knows one."""
    total = {}
    for name in NAMES:
        first, second, third = (stage.parameters[name].grad for stage in stages)
        assert first is not None
        assert second is not None
        assert third is not None
        total[name] = ((first + second) + third).tolist()
    return total


def finish(reducers: list[Reducer]) -> None:
    """As three devices would: whoever adds up is last to be ready, and so waits for nobody."""
    a, b, c = reducers
    for one, names in ((a, "wv"), (b, "wvu"), (c, "uwv"), (a, "u")):
        for name in names:
            one.ready(name)
    for one in (b, c, a):
        one.finish(lambda: None)


def test_everybody_has_the_sum_of_all_in_the_order_of_the_plan() -> None:
    stages, reducers, links = members()
    expected = added_up(stages)
    for one in reducers:
        one.begin(ROUND)
    finish(reducers)
    assert [stage.gradients for stage in stages] == [expected] * 3
    assert not any(links[0].post.values())


def test_statistics_of_the_group_travel_with_their_bucket() -> None:
    stages, reducers, _ = members()
    for one in reducers:
        one.begin(ROUND)
    finish(reducers)
    for stage in stages:
        [statistic] = stage.running.statistics[ROUND].values()
        assert (statistic.flat.tolist(), statistic.rows) == ([2.0], 3)


def test_a_parameter_that_nobody_has_a_gradient_of_stays_without_and_others_count() -> None:
    stages, reducers, _ = members()
    for stage in stages:
        stage.parameters["w"].grad = None
    stages[0].parameters["u"].grad = torch.ones(3)
    stages[1].parameters["u"].grad = None
    stages[2].parameters["u"].grad = torch.ones(3)
    for one in reducers:
        one.begin(ROUND)
    finish(reducers)
    assert [stage.gradients["w"] for stage in stages] == [None] * 3
    assert [stage.gradients["u"] for stage in stages] == [[2.0] * 3] * 3


def test_a_bucket_goes_out_once_when_its_last_gradient_is_ready_and_never_waits() -> None:
    _, (a, b, _), links = members()
    for one in (a, b):
        one.begin(ROUND)
    b.ready("w")
    b.ready("unknown")
    assert links[1].sent == []
    b.ready("v")
    b.ready("v")
    assert [(peer, tag.kind) for peer, tag, _ in links[1].sent] == [("c", "reduce")]
    a.ready("u")  # its own to add up: the others' are not there, and it goes on
    assert links[0].sent == []


def test_what_is_late_is_waited_for_at_the_end() -> None:
    _, (a, _, _), _ = members()
    a.begin(ROUND)
    with pytest.raises(LinkTimeout, match="reduce"):
        a.finish(lambda: None)


def test_a_device_without_a_part_in_it_has_nothing_to_do() -> None:
    site = cast(Any, SimpleNamespace(me="z"))
    alone = Reducer(site, SUMS)
    assert not alone.busy
    alone.begin(0)
    alone.ready("w")
    assert members()[1][0].busy
