"""Puts a device's next stage together: its state, from what is held here and what others give, and its surroundings."""

from __future__ import annotations

import threading

import torch

from potluck.compute.runner import StageRunner, StageState
from potluck.device.keeper import Keeper, joined, subset
from potluck.device.stage.exchange import Site
from potluck.device.stage.sums import Sums, share_sums
from potluck.errors import LinkTimeout
from potluck.memory_limit import start
from potluck.plan.schedule.action_list import late_weights
from potluck.plan.schedule.holders import stage_of
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.program.blocks import value_bytes
from potluck.program.layout import PlanLayout
from potluck.program.program import ProgramPair
from potluck.tensors.state_transfer import receive_state, send_state
from potluck.tensors.tried_codecs import try_codecs
from potluck.wire.link import Link
from potluck.wire.messages import Prepare


def put_together(link: Link, order: Prepare, me: str, keeper: Keeper, timeout_s: float) -> StageState:
    """The state, while others get of it what they need from here."""
    trouble: list[Exception] = []

    def give() -> None:
        try:
            for move in order.moves:
                if move.source == me and move.target != me:
                    state = subset(keeper.state(move.held), move.names)
                    send_state(link, move.target, order.round, state, timeout_s, move.held, fixed=True, term=order.term)
        except Exception as error:  # whatever it is: others wait for what does not come
            trouble.append(error)

    giving = threading.Thread(target=give, name="potluck-giving", daemon=True)
    start(giving)
    try:
        parts = [
            subset(keeper.state(move.held), move.names)
            if move.source == me
            else receive_state(link, move.source, order.round, timeout_s, move.held)
            for move in order.moves
            if move.target == me
        ]
    finally:
        giving.join(timeout_s)
    if trouble:
        raise trouble[0]
    if giving.is_alive():
        raise LinkTimeout(f"others did not take what {me} gives after {timeout_s:.0f} s")
    return joined(parts)


def site_of(
    link: Link, order: Prepare, me: str, state: StageState, programs: ProgramPair, device: torch.device,
    timeout_s: float,
) -> tuple[Site, Sums]:  # fmt: skip
    """The stage with this state in its plan, and who adds up which gradients."""
    layout = PlanLayout(programs, order.plan)
    try_codecs(layout, device)
    index = stage_of(order.plan, me)
    mine = order.plan.stages[index]
    stage = StageRunner(
        programs, mine.blocks, state, order.optimizer, order.seed, device, recompute=mine.recompute,
        late_weights=late_weights(order.plan, index) > 0 and layout.awaits_gradients(index),
        staleness=schedule_named(order.plan.schedule).staleness, first=order.round,
    )  # fmt: skip
    trainable = [s for s in programs.train.sources if s.kind == "parameter" and s.trainable]
    users = {s.name: layout.users[s.name] for s in trainable if s.name in layout.users}
    sizes = {s.name: value_bytes(programs.train.values[s.id], 1) for s in trainable}
    sums = share_sums(order.plan, users, sizes, layout.running_statistics())
    return Site(me, index, order.plan, layout, stage, link, timeout_s), sums
