"""Heavy rescheduling, to compare with: everything goes to the coordinator, which plans anew and sends it out again."""

from __future__ import annotations

import dataclasses

from potluck.errors import DeviceError
from potluck.plan.groups import shareable
from potluck.plan.search import find_plan
from potluck.profile.members import of_devices
from potluck.recover.placement import Restart, restart_at
from potluck.runtime.coordinator import Coordinator
from potluck.runtime.recovery import Recovery
from potluck.runtime.session import Session
from potluck.runtime.state_transfer import receive_state
from potluck.types import COORDINATOR, Held, Member, Plan, Stage
from potluck.wire.messages import Prepare, Prepared

PLAN_S = 2.0  # what `potluck train` takes for a plan


class Heavy(Recovery):
    """Goes on without the lost devices, the hard way."""

    def _plan(self, session: Session, gone: object, held: object, error: DeviceError) -> Plan:
        assert self._profile is not None
        facts = shareable(self._prepared.facts, self._prepared.job.batchnorm)
        sizes = [(session.plan.micro_batch_size, session.plan.micro_batches)]
        return find_plan(facts, of_devices(self._profile, self._live.roster.links), sizes, seconds=PLAN_S).plan

    def _term(
        self, coordinator: Coordinator, plan: Plan, holdings: dict[str, tuple[Held, ...]], reason: str
    ) -> tuple[Session, Restart]:
        session, restart = super()._term(coordinator, plan, holdings, reason)
        self._collect(session, restart, holdings)
        session = dataclasses.replace(session, term=self._live.next_term(session.term))
        return session, self._restart(session, {}, restart.round)

    def _collect(self, session: Session, restart: Restart, holdings: dict[str, tuple[Held, ...]]) -> None:
        """Brings the state of the whole model to the coordinator."""
        names_of = self._names_of()
        wanted = {COORDINATOR: frozenset(self._sizes)}
        gather = restart_at(restart.round, holdings, names_of, wanted, self._sizes)
        blocks = (0, len(self._prepared.facts.blocks))
        nobody = Plan(
            micro_batch_size=session.plan.micro_batch_size, micro_batches=session.plan.micro_batches,
            stages=(Stage(blocks=blocks, group=(Member(device="nobody", share=session.plan.micro_batches),)),),
        )  # fmt: skip
        givers = sorted({move.source for move in gather.moves})
        session.link.adopt(session.term, {device: session.roster.links[device] for device in givers})
        for device in givers:
            order = Prepare(
                term=session.term, round=restart.round, plan=nobody, program=session.digest,
                moves=tuple(m for m in gather.moves if m.source == device), peers={COORDINATOR: session.link.address},
                optimizer=session.optimizer, seed=session.job.seed, clip_norm=None, own_commit=False, window_bytes=0,
            )  # fmt: skip
            session.roster.send(device, order)
        parts = [receive_state(session.link, m.source, gather.round, session.timeout_s, m.held) for m in gather.moves]
        session.model.take(gather.round, parts)
        waiting = set(givers)
        while waiting:
            device, message = Coordinator(session)._next("waiting for what devices hold")
            if isinstance(message, Prepared):
                waiting.discard(device)
