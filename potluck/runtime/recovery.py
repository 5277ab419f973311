"""What the coordinator does when devices are lost: ask who holds what, choose a plan for the rest, and go on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from potluck.control.setbacks import Setbacks
from potluck.errors import DeviceError, DeviceLost, Overdue, PotluckError
from potluck.metrics.records import IncidentRecord
from potluck.model.blocks import value_bytes
from potluck.model.program import ProgramPair
from potluck.plan.events import simulate
from potluck.plan.memory import fits
from potluck.plan.tables import Tables
from potluck.plan.validate import validate
from potluck.recover.placement import Restart, recovery_point, restart_at
from potluck.recover.repartition import nearest
from potluck.runtime.changes import Changes
from potluck.runtime.coordinator import Coordinator
from potluck.runtime.layout import PlanLayout
from potluck.runtime.live_fleet import LiveFleet
from potluck.runtime.prepare import PreparedJob
from potluck.runtime.session import Changeover, Session
from potluck.types import COORDINATOR, Held, Plan, Profile
from potluck.units import size_text
from potluck.wire.messages import Holding

_CAUSE_S = 4.0  # in which a device that does not answer others is noticed by its own connection
_SOON = 1  # round, until a better plan may be found in the background, and adopted if that pays
_EVERYTHING = -1  # stage number of the whole model


class Recovery:
    """Everything that outlives a term: the plans there were, what went wrong, and how to go on."""

    def __init__(self, live: LiveFleet, prepared: PreparedJob, changes: Changes) -> None:
        self._live, self._prepared, self._changes = live, prepared, changes
        self._layouts: dict[int, PlanLayout] = {}
        self._setbacks = Setbacks()
        self._incidents: list[IncidentRecord] = []  # that are not told yet
        self._noticed_s = 0.0
        self._machines: dict[str, tuple[str, str, int, str]] = {}
        self._leaving: tuple[str, ...] = ()
        self._sizes = tensor_sizes(prepared.built.programs)

    @property
    def _profile(self) -> Profile | None:
        return self._changes.profile

    @property
    def _tables(self) -> Tables | None:
        return None if self._profile is None else Tables(self._profile)

    def begin(self, session: Session) -> Restart:
        """The first term: everything comes from the coordinator."""
        self._changes.adopted(session.plan)
        return self._restart(session, {}, session.first_round)

    def change(self, coordinator: Coordinator, change: Changeover) -> tuple[Session, Restart]:
        """The next term, by another plan; whoever leaves gives away what it holds."""
        self._noticed_s = time.monotonic()
        holdings, losses = self._ask(coordinator, None)
        if losses:  # in this very moment
            return self._next(coordinator, holdings, losses, "; ".join(losses.values()))
        held = self._held_blocks(coordinator, holdings)
        plan = change.plan or self._plan(coordinator.s, change.devices, held, DeviceError(str(change)))
        if not set(plan.devices) <= set(self._live.roster.links):  # a newcomer has gone again
            plan = coordinator.s.plan
        session, restart = self._term(coordinator, plan, holdings, str(change))
        self._note(session, coordinator, restart, change.kind, change.devices, str(change))
        return session, restart

    def after(self, coordinator: Coordinator, error: DeviceError) -> tuple[Session, Restart]:
        """The next term, for the devices that are left; an error if there is no way on."""
        self._noticed_s = time.monotonic()
        holdings, losses = self._ask(coordinator, error)
        return self._next(coordinator, holdings, losses, "; ".join(losses.values()) or str(error))

    def _next(
        self, coordinator: Coordinator, holdings: dict[str, tuple[Held, ...]], losses: dict[str, str], what: str
    ) -> tuple[Session, Restart]:
        lost = tuple(losses)
        in_training = coordinator.begun is not None and coordinator.begun >= coordinator.committed
        stop = self._setbacks.note(coordinator.committed, in_training, lost)
        if stop is not None:
            raise PotluckError(f"{stop}; {self._samples(coordinator)}{what}")
        advice = self._live.roster.what_now
        gone = [d for d in coordinator.s.plan.devices if d not in self._live.roster.specs]
        plan = coordinator.s.plan
        if gone:
            held = self._held_blocks(coordinator, holdings)
            plan = self._plan(coordinator.s, gone, held, DeviceError(f"{what}; {advice}"))
        session, restart = self._term(coordinator, plan, holdings, _reason(lost))
        self._note(session, coordinator, restart, "lost" if lost else "link", lost, what)
        if gone:
            self._changes.look_for_better()
        return session, restart

    def _term(
        self, coordinator: Coordinator, plan: Plan, holdings: dict[str, tuple[Held, ...]], reason: str
    ) -> tuple[Session, Restart]:
        """The session of the next term, and where it starts."""
        session = coordinator.s
        session = dataclasses.replace(
            session, plan=plan, layout=PlanLayout(session.layout.programs, plan), plan_reason=reason,
            term=self._live.next_term(session.term), copies=self._room_for_copies(plan), fresh=False,
        )  # fmt: skip
        self._changes.adopted(plan)
        restart = self._restart(session, holdings, _newest(coordinator))
        plans = [layout.plan for layout in self._layouts.values()]
        alike = len({self._machines.get(device) for known in plans for device in known.devices}) == 1
        exact = alike and all(len(stage.group) == 1 for known in plans for stage in known.stages)
        session.folder.ledger.fsync |= len(plan.devices) > 1
        return dataclasses.replace(session, first_round=restart.round, exact=exact), restart

    def done(self, coordinator: Coordinator) -> None:
        """All devices are ready to go on: says what happened since they were last."""
        for incident in self._incidents:
            took_s = time.monotonic() - coordinator.s.started_s - incident.at_s
            coordinator.say(replace(incident, recovery_s=took_s))
        self._incidents.clear()
        for device in self._leaving:
            self._changes.gone(device)
            if device in self._live.roster.specs:
                self._live.roster.release(device)
        self._leaving = ()

    def _ask(
        self, coordinator: Coordinator, error: DeviceError | None
    ) -> tuple[dict[str, tuple[Held, ...]], dict[str, str]]:
        """What those hold who are left; and who is lost, and how."""
        roster, session = self._live.roster, coordinator.s
        lost = {error.device: error.why} if isinstance(error, DeviceLost) else {}
        holdings: dict[str, tuple[Held, ...]] = {}
        deadline = time.monotonic() + session.timeout_s
        settled = time.monotonic() + (0.0 if lost or error is None else _CAUSE_S)
        while missing := sorted(d for d in coordinator.needed if d in roster.specs and d not in holdings):
            try:
                device, message = roster.next(deadline, f"waiting for {', '.join(missing)} to say what they hold")
            except DeviceLost as more:
                lost[more.device] = more.why
            except Overdue:
                lost |= {d: roster.drop(d, "is connected and does not answer").why for d in missing}
            else:
                if isinstance(message, Holding) and message.term == session.term:
                    holdings[device] = tuple(h for h in message.states if h.term in self._layouts)
                else:
                    session.heard(device, message)
        while not lost and time.monotonic() < settled:
            try:
                session.heard(*roster.next(settled, "looking for the cause"))
            except DeviceLost as more:
                lost[more.device] = more.why
            except Overdue:
                break
        return {d: h for d, h in holdings.items() if d in roster.specs}, lost

    def _held_blocks(self, coordinator: Coordinator, holdings: Mapping[str, tuple[Held, ...]]) -> dict[str, set[int]]:
        """Device → blocks that it has as of the round from which training will go on."""
        everywhere = {**holdings, COORDINATOR: (self._whole(coordinator.s),)}
        point = recovery_point(everywhere, self._names_of(), frozenset(self._sizes), _newest(coordinator))
        found: dict[str, set[int]] = {}
        for device, states in holdings.items():
            stages = [self._layouts[h.term].plan.stages[h.stage] for h in states if h.round == point]
            found[device] = {block for stage in stages for block in range(*stage.blocks)}
        return found

    @staticmethod
    def _whole(session: Session) -> Held:
        """What the coordinator holds."""
        return Held(term=0, stage=_EVERYTHING, round=session.model.round)

    def _plan(
        self, session: Session, gone: Collection[str], held: Mapping[str, Collection[int]], error: DeviceError
    ) -> Plan:
        """A plan without some devices: soon in force, and fast for the rounds until a better one may be found."""
        known = set(
            self._live.roster.specs if self._profile is None else (d.device.name for d in self._profile.devices)
        )
        idle = [d for d in self._live.roster.links if d not in session.plan.devices and d in known]
        plan = nearest(session.plan, gone, idle, lambda plan: _SOON * self._seconds(plan) + self._moving_s(plan, held))
        if plan is None:
            left = ", ".join(d for d in session.plan.devices if d not in gone) or "nobody"
            raise DeviceError(f"{error} ({left} left: no plan fits)")
        return plan

    def _seconds(self, plan: Plan) -> float:
        """Of a round; without measurements, what the largest stage touches stands for it."""
        facts, job = self._prepared.facts, self._prepared.job
        try:
            validate(plan, facts, self._live.fleet, job.batchnorm)
        except PotluckError:
            return float("inf")
        if self._profile is None or self._tables is None:
            blocks = [facts.blocks[slice(*stage.blocks)] for stage in plan.stages]
            rows = plan.micro_batch_size
            loads = [sum(b.stash_bytes * rows + b.weight_bytes for b in some) for some in blocks]
            return max(load / len(stage.group) for load, stage in zip(loads, plan.stages, strict=True))
        if not fits(plan, facts, self._tables):
            return float("inf")
        return simulate(plan, facts, self._profile).round_s

    def _moving_s(self, plan: Plan, held: Mapping[str, Collection[int]]) -> float:
        """Until every device has what it has not yet: the slowest of them, as all move at once."""
        tables, facts = self._tables, self._prepared.facts
        if tables is None:
            return 0.0
        sizes = [b.weight_bytes + b.buffer_bytes + facts.optimizer_slots * b.trainable_bytes for b in facts.blocks]
        waits = [0.0]
        for stage in plan.stages:
            for member in stage.group:
                here = held.get(member.device, ())
                missing = sum(sizes[block] for block in range(*stage.blocks) if block not in here)
                waits.append(tables.inlet_s(member.device, missing))
        return max(waits)

    def _room_for_copies(self, plan: Plan) -> bool:
        return self._tables is None or fits(plan, self._prepared.facts, self._tables, snapshot=True)

    def _names_of(self) -> dict[tuple[int, int], frozenset[str]]:
        """The tensors of every state that somebody may hold."""
        found = {(0, _EVERYTHING): frozenset(self._sizes)}
        for term, layout in self._layouts.items():
            found |= {(term, index): _names(layout, index) for index in range(len(layout.plan.stages))}
        return found

    def _restart(self, session: Session, holdings: dict[str, tuple[Held, ...]], at_most: int) -> Restart:
        self._layouts[session.term] = session.layout
        for device, hello in self._live.roster.hellos.items():  # another machine may give other last bits
            self._machines[device] = (hello.host, hello.device.kind, hello.device.threads, hello.torch_version)
        names_of = self._names_of()
        wanted = {m.device: names_of[session.term, i] for i, s in enumerate(session.plan.stages) for m in s.group}
        held = {**holdings, COORDINATOR: (self._whole(session),)}
        needed = frozenset(name for names in wanted.values() for name in names)
        point = recovery_point(held, names_of, needed, at_most)
        if point is None:
            raise PotluckError(f"no state from before round {at_most} is left; go on with --resume")
        return restart_at(point, held, names_of, wanted, self._sizes)

    def _samples(self, coordinator: Coordinator) -> str:
        if coordinator.order is None:
            return ""
        ids = coordinator.order.round(coordinator.committed).ids
        return f"look at samples {min(ids)} to {max(ids)}, {len(ids)} of them; "

    def _note(
        self, session: Session, coordinator: Coordinator, restart: Restart, kind: Any, devices: tuple[str, ...],
        what: str,
    ) -> None:  # fmt: skip
        """Remembers what happened, to be told when everybody is ready."""
        replayed = coordinator.committed - restart.round
        moved = restart.moved_bytes(self._sizes)
        again = f"{replayed} round{'s' * (replayed > 1)} trained again, " if replayed else ""
        reason = "" if session.plan_reason == what else f"{session.plan_reason}: "
        self._leaving = devices if kind == "left" else ()
        self._incidents.append(
            IncidentRecord(
                kind=kind, round=coordinator.committed, device=devices[0] if devices else None, what=what,
                action=f"{reason}{again}{size_text(moved)} moved",
                at_s=self._noticed_s - session.started_s, replayed_rounds=replayed, moved_bytes=moved,
            )
        )  # fmt: skip


def _newest(coordinator: Coordinator) -> int:
    """The newest round from which training can go on.

    After the very last one nothing is left to train, so nobody would report it, unless everybody has.
    """
    committed, order = coordinator.committed, coordinator.order
    over = order is not None and committed == order.rounds and coordinator.s.model.round != committed
    return committed - 1 if over else committed


def _reason(lost: tuple[str, ...]) -> str:
    return f"goes on without {', '.join(lost)}" if lost else "the same devices connect anew"


def _names(layout: PlanLayout, stage: int) -> frozenset[str]:
    parameters, buffers = layout.state_names(stage)
    return frozenset((*parameters, *buffers))


def tensor_sizes(programs: ProgramPair) -> dict[str, int]:
    """Bytes of every parameter and buffer."""
    return {
        source.name: value_bytes(program.values[source.id], 1)
        for program in (programs.train, programs.eval)
        for source in program.sources
        if source.kind in ("parameter", "buffer")
    }
