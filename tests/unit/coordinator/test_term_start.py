"""What devices are told and given as a term starts."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import torch

from potluck.coordinator.rounds.term_start import start_term
from potluck.job.optimizers import SGD
from potluck.program.layout import PlanLayout
from potluck.recover.copies import CopyRules
from potluck.recover.placement import Restart
from potluck.tensors.model_state import ModelState
from potluck.tensors.state_transfer import receive_state
from potluck.types import COORDINATOR, CopyLine, Held, Move, Plan
from potluck.wire.messages import Prepare
from tests.unit.coordinator.small_job import plan_of, prepared, small_job
from tests.unit.memory_link import memory_links

LINE = CopyLine(1e6, shared=False, part=0.2)
UNMEASURED = CopyLine(12.5e6, shared=True, part=0.3)


def started(
    plan: Plan, restart: Restart, *, copies: bool = True, devices: tuple[str, ...] = ()
) -> tuple[Any, dict[str, Prepare]]:
    """The ends of the links after the start of term 4, and what each device was told."""
    here, *ends = memory_links(["coordinator", "d0", "d1", "d2"], term=4)
    told: dict[str, Prepare] = {}
    roster = SimpleNamespace(links={f"d{i}": f"memory:d{i}" for i in range(3)}, send=told.__setitem__)
    run = SimpleNamespace(
        roster=roster, link=here, folder=SimpleNamespace(run_id="run"), digest="program", optimizer=SGD(lr=0.1),
        job=small_job(seed=3, clip_norm=2.0), copy_lines={("d0", "d1"): LINE}, copy_rules=CopyRules(part_of_a_link=0.3),
        timeout_s=1.0, model=ModelState(dict(prepared().built.state), {}, {}),
    )  # fmt: skip
    layout = PlanLayout(prepared().built.programs, plan)
    term = SimpleNamespace(run=run, plan=plan, layout=layout, term=4, copies=copies, alone=len(plan.devices) == 1)
    start_term(cast(Any, term), restart, devices or plan.devices)
    for thread in threading.enumerate():
        if thread.name == "potluck-giving":
            thread.join(20.0)
    return SimpleNamespace(here=here, ends=ends, model=run.model, layout=layout), told


def test_each_device_is_told_the_plan_its_peers_and_its_part_of_what_moves() -> None:
    plan = plan_of(("d0",), ("d1",))
    held = Held(term=3, stage=0, round=5)
    moves = (
        Move(source="d0", target="d1", held=held, names=("0.weight",)),
        Move(source="d2", target="d1", held=held, names=("2.bias",)),
    )
    it, told = started(plan, Restart(5, moves), devices=("d1", "d0", "d2"))
    assert {d: p.moves for d, p in told.items()} == {"d0": moves[:1], "d1": moves, "d2": moves[1:]}
    assert told["d0"].peers == {"d1": "memory:d1", "d2": "memory:d2", COORDINATOR: "memory:coordinator"}
    assert it.here.peers == {d: f"memory:{d}" for d in ("d0", "d1", "d2")}
    assert it.here.term == 4
    for prepare in told.values():
        assert (prepare.run, prepare.term, prepare.round, prepare.plan) == ("run", 4, 5, plan)
        assert (prepare.program, prepare.seed, prepare.clip_norm, prepare.own_commit) == ("program", 3, 2.0, False)


def test_neighbours_keep_copies_of_each_other_if_there_is_room() -> None:
    _, told = started(plan_of(("d0",), ("d1",)), Restart(0, ()))
    assert {d: (p.guardian, p.wards, p.copy_line) for d, p in told.items()} == {
        "d0": ("d1", ("d1",), LINE), "d1": ("d0", ("d0",), UNMEASURED),
    }  # fmt: skip
    _, without = started(plan_of(("d0",), ("d1",)), Restart(0, ()), copies=False)
    assert {(p.guardian, p.wards, p.copy_line) for p in without.values()} == {(None, (), None)}


def test_a_lone_device_commits_by_itself() -> None:
    _, told = started(plan_of(("d0",)), Restart(0, ()))
    assert told["d0"].own_commit


def test_what_only_the_coordinator_has_is_sent_and_nothing_else() -> None:
    whole = Held(term=0, stage=-1, round=5)
    moves = (
        Move(source=COORDINATOR, target="d1", held=whole, names=("2.weight", "2.bias")),
        Move(source="d0", target="d1", held=Held(term=3, stage=0, round=5), names=("0.weight",)),
    )
    it, _ = started(plan_of(("d0",), ("d1",)), Restart(5, moves))
    state = receive_state(it.ends[1], "coordinator", 5, 0.0, whole)
    assert set(state.parameters) == {"2.weight", "2.bias"}
    assert all(torch.equal(tensor, it.model.tensors[name]) for name, tensor in state.parameters.items())
    assert {peer for peer, _, _ in it.here.sent} == {"d1"}
    assert {tag.part for _, tag, _ in it.here.sent} == {0}  # the term of what was asked for
