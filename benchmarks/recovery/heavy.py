"""Heavy rescheduling, to compare with: everything goes to the coordinator, which plans anew and sends it out again."""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec.structs import replace

from benchmarks.recovery.told import Told
from potluck.control.cluster_events import ComputePlan
from potluck.control.cluster_state import newest
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.plan.groups import shareable
from potluck.plan.search.plan_search import find_plan
from potluck.profile.members import of_devices
from potluck.recover.placement import recovery_point, restart_at
from potluck.tensors.state_transfer import receive_state
from potluck.types import COORDINATOR, Held, Member, Plan, Profile, Stage
from potluck.wire.messages import Prepare, Prepared

PLAN_S = 2.0  # what `potluck train` takes for a plan


class Heavy(Told):
    """Goes on without the lost devices, the hard way."""

    def _plan(self, asked: ComputePlan) -> None:
        if asked.without and asked.wish is None:
            self._collect()
        super()._plan(asked)

    def _replacement_for(self, asked: ComputePlan) -> Plan | None:
        profile = self._changes.profile
        if not asked.without or asked.wish is not None or profile is None:
            return super()._replacement_for(asked)
        return planned_anew(self._prepared, profile, self._live.roster.links, asked.force)

    def _collect(self) -> None:
        """Brings the state of the whole model to the coordinator."""
        s, plan, state, blueprint = self._run, self._term.plan, self.state, self.blueprint
        everything = frozenset(blueprint.sizes)
        names_of = {(t, i): blueprint.names(p, i) for t, p in state.plans.items() for i in range(len(p.stages))}
        whole = Held(term=0, stage=-1, round=s.model.round)
        holdings = {**state.holdings, COORDINATOR: (whole,)}
        point = recovery_point(holdings, {**names_of, (0, -1): everything}, everything, newest(state))
        if point is None or point == s.model.round:
            return
        gather = restart_at(point, state.holdings, names_of, {COORDINATOR: everything}, blueprint.sizes)
        blocks = (0, len(self._prepared.facts.blocks))
        nobody = Plan(
            micro_batch_size=plan.micro_batch_size, micro_batches=plan.micro_batches,
            stages=(Stage(blocks=blocks, group=(Member(device="nobody", share=plan.micro_batches),)),),
        )  # fmt: skip
        givers = sorted({move.source for move in gather.moves})
        term = self._live.next_term(state.term)
        s.link.adopt(term, {device: s.roster.links[device] for device in givers})
        for device in givers:
            order = Prepare(
                run=s.folder.run_id, term=term, round=point, plan=nobody, program=s.digest,
                moves=tuple(m for m in gather.moves if m.source == device), peers={COORDINATOR: s.link.address},
                optimizer=s.optimizer, seed=s.job.seed, clip_norm=None, own_commit=False, window_bytes=0,
            )  # fmt: skip
            s.roster.send(device, order)
        parts = [receive_state(s.link, m.source, point, s.timeout_s, m.held) for m in gather.moves]
        s.model.take(point, parts)
        waiting, deadline = set(givers), time.monotonic() + s.timeout_s
        while waiting:
            device, message = s.roster.next(deadline, "waiting for what devices hold")
            if isinstance(message, Prepared):
                waiting.discard(device)
        self.state = replace(self.state, holdings={})  # all of it comes from the coordinator


def planned_anew(prepared: PreparedJob, profile: Profile, here: Iterable[str], before: Plan) -> Plan:
    """The plan that `potluck train` finds for these devices."""
    facts = shareable(prepared.facts, prepared.job.batchnorm)
    sizes = [(before.micro_batch_size, before.micro_batches)]
    return find_plan(facts, of_devices(profile, list(here)), sizes, seconds=PLAN_S).plan
