"""Two devices walk a round over links in memory: what comes out has the bits of the model in one piece."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from msgspec.structs import replace

from potluck.compute.runner import StageState
from potluck.control.commit import judge
from potluck.coordinator.rounds.feeder import send_feeds
from potluck.coordinator.samples.loading import training_loader
from potluck.device.assembling import site_of
from potluck.device.host.throttle import Throttle
from potluck.device.stage.exchange import Exchange
from potluck.device.stage.executor import Executor
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.program.layout import PlanLayout
from potluck.types import COORDINATOR, Plan
from potluck.uncut.uncut_run import UncutRun
from potluck.wire.link import Buffer, Tag
from potluck.wire.messages import Begin, Prepare, Ready, Verdict
from tests.unit.coordinator.small_job import plan_of, prepared
from tests.unit.memory_link import MemoryLink, Post, memory_links

PATIENT_S = 20.0
CPU = torch.device("cpu")
TWO_EPOCHS = dataclasses.replace(prepared().job, epochs=2)


class WaitingLink(MemoryLink):
    """One that waits for what is still to be sent."""

    def __init__(self, name: str, post: Post, news: threading.Condition) -> None:
        super().__init__(name, post)
        self._news = news

    def send(self, peer: str, tag: Tag, parts: Sequence[Buffer], timeout_s: float, term: int | None = None) -> None:
        with self._news:
            super().send(peer, tag, parts, timeout_s, term)
            self._news.notify_all()

    def receive(self, peer: str, tag: Tag, timeout_s: float, term: int | None = None) -> list[memoryview]:
        with self._news:
            self._news.wait_for(lambda: self.arrived(peer, tag), timeout_s)
            return super().receive(peer, tag, timeout_s, term)


class Together:
    """Commits what all devices are ready for, as the coordinator does."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._ready: dict[int, dict[str, Ready]] = {}
        self._news = threading.Condition()

    def of(self, device: str) -> Together.One:
        return Together.One(self, device)

    def verdict(self, begin: Begin) -> Verdict:
        """The verdict on a round, once everybody is ready."""
        with self._news:
            ready = self._ready.setdefault(begin.round, {})
            assert self._news.wait_for(lambda: len(ready) == self._devices, PATIENT_S)
        order = [s.name for s in prepared().built.programs.train.sources if s.trainable]
        kind = judge(dict(sorted(ready.items())), order, None, 0).kind
        return Verdict(round=begin.round, kind=kind, lr_scale=begin.lr_scale)

    class One:
        def __init__(self, owner: Together, device: str) -> None:
            self._owner, self._device = owner, device

        def report(self, ready: Ready, begin: Begin, attempt: int) -> None:
            with self._owner._news:
                self._owner._ready.setdefault(ready.round, {})[self._device] = ready
                self._owner._news.notify_all()

        def heard(self) -> list[Verdict]:
            return []

        def verdict(self, begin: Begin) -> Verdict:
            return self._owner.verdict(begin)


def executors(plan: Plan) -> tuple[dict[str, Executor], WaitingLink]:
    post, news, together = memory_links("x")[0].post, threading.Condition(), Together(len(plan.devices))
    built = prepared().built
    order = Prepare(
        run="r", term=1, round=0, moves=(), plan=plan, program="", peers={}, optimizer=prepared().optimizer, seed=0,
        clip_norm=None, own_commit=False, window_bytes=0,
    )  # fmt: skip
    found = {}
    for device in plan.devices:
        names = {n for s in built.programs.train.sources if s.kind == "parameter" for n in [s.name]}
        layout = PlanLayout(built.programs, plan)
        index = next(i for i, s in enumerate(plan.stages) if any(m.device == device for m in s.group))
        held = StageState({n: built.state[n] for n in layout.state_names(index)[0] if n in names}, {})
        link = WaitingLink(device, post, news)
        site, sums = site_of(link, order, device, held, built.programs, CPU, PATIENT_S)
        found[device] = Executor(site, sums, together.of(device), Throttle(1.0))
    return found, WaitingLink(COORDINATOR, post, news)


def trained(plan: Plan, rounds: int) -> dict[str, torch.Tensor]:
    """The weights after some rounds, which every device goes through as soon as it may."""
    walkers, coordinator = executors(plan)
    layout, loader = PlanLayout(prepared().built.programs, plan), training_loader(TWO_EPOCHS, ahead=1)
    late = schedule_named(plan.schedule).staleness
    begins = []
    try:
        for round in range(rounds):
            batch = loader.get(round)
            begin = Begin(
                round=round, sizes=(2, 2), total_weight=float(batch.weights.sum()), lr_scale=1.0,
                follows=late > 0 and round + 1 < rounds,
            )  # fmt: skip
            send_feeds(coordinator, layout, "train", round, batch, begin.sizes, PATIENT_S)
            begins.append(begin)
    finally:
        loader.close()

    def walk(one: Executor) -> list[tuple[int, str, bool]]:
        settled: list[tuple[int, str, bool]] = []
        for begin in begins:
            under_way = one.train(begin, lambda verdict, rests: settled.append((verdict.round, verdict.kind, rests)))
            assert under_way == begin.follows
        return settled

    with ThreadPoolExecutor(len(walkers)) as pool:
        for settled in pool.map(walk, walkers.values()):
            rests = [not late or round + 1 == rounds for round in range(rounds)]
            assert settled == [(round, "commit", rests[round]) for round in range(rounds)]
    return {n: t for walker in walkers.values() for n, t in walker.stage.state().parameters.items()}


def uncut(rounds: int, staleness: int = 0) -> dict[str, torch.Tensor]:
    built = prepared().built
    run = UncutRun(built.programs, dict(built.state), prepared().optimizer, seed=0, clip_norm=None, staleness=staleness)
    loader = training_loader(TWO_EPOCHS, ahead=1)
    try:
        for round in range(rounds):
            batch = loader.get(round)
            parts = [slice(0, 2), slice(2, 4)]
            run.round(round, [({n: t[p] for n, t in batch.feeds.items()}, batch.weights[p]) for p in parts])
    finally:
        loader.close()
    return run.stage.state().parameters


def test_a_round_that_is_cut_has_the_bits_of_the_round_that_is_not() -> None:
    found, wanted = trained(plan_of(("d0",), ("d1",)), 2), uncut(2)
    assert found.keys() == wanted.keys()
    assert [n for n in wanted if not torch.equal(found[n], wanted[n])] == []


@pytest.mark.parametrize("depths", [(2, 1), (3, 2, 1), (5, 3, 1)])
def test_rounds_that_overlap_have_the_bits_of_the_round_that_is_late(depths: tuple[int, ...]) -> None:
    plan = plan_of(*((f"d{i}",) for i in range(len(depths))))
    stages = tuple(replace(stage, depth=depth) for stage, depth in zip(plan.stages, depths, strict=True))
    found, wanted = trained(replace(plan, stages=stages, schedule="steady"), 5), uncut(5, staleness=1)
    assert [n for n in wanted if not torch.equal(found[n], wanted[n])] == []
    assert any(not torch.equal(t, wanted[n]) for n, t in uncut(5).items())


def test_members_that_share_rows_have_the_same_weights_and_nearly_those_of_one() -> None:
    found, wanted = trained(plan_of(("d0", "d1")), 2), uncut(2)
    assert max(float((found[n] - wanted[n]).abs().max()) for n in wanted) < 1e-6


def test_what_a_stage_gives_goes_to_whoever_takes_it_and_nowhere_else() -> None:
    walkers, _ = executors(plan_of(("d0",), ("d1",)))
    first, last = walkers["d0"].site, walkers["d1"].site
    part, other = first.part(0, 2), last.part(0, 2)
    assert part is not None
    assert other is not None
    values = {v: torch.ones(2, 4) for v in first.stage.piece.sends}
    Exchange(first, "train", 0, 0, 2, part).send_outputs(values)
    assert isinstance(first.link, MemoryLink)
    assert {peer for peer, _, _ in first.link.sent} == {"d1"}
    arrived = Exchange(last, "train", 0, 0, 2, other).activations()
    assert {v: t.tolist() for v, t in arrived.items()} == {v: t.tolist() for v, t in values.items()}
