"""The coordinator's state machine in force: what devices say becomes events, and what it orders is done.

Term after term: `next` drives it until a plan is in force, and gives the coordinator that trains by it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from potluck.control.cluster import ClusterStep, opened, reopened, transition
from potluck.control.cluster_events import (
    Adopt,
    Broken,
    Commit,
    ComputePlan,
    Drop,
    Event,
    GiveUpTerm,
    Holds,
    Idle,
    IsPrepared,
    Joined,
    Lost,
    NoCause,
    Note,
    Order,
    Planned,
    PrepareTerm,
    Saved,
    SeekCause,
    Settle,
    Stalled,
    StopRun,
)
from potluck.control.cluster_state import ClusterState
from potluck.control.open_rounds import OpenRounds
from potluck.coordinator.contexts import TermContext
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.rounds.announcer import Announcer
from potluck.coordinator.rounds.replacement import Replacement
from potluck.coordinator.rounds.replan import Replanner
from potluck.coordinator.rounds.round_loop import RoundLoop
from potluck.coordinator.rounds.term_start import start_term
from potluck.coordinator.run_folder.term_log import Term
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.errors import DeviceError, DeviceLost, Overdue, PotluckError
from potluck.metrics.records import IncidentRecord
from potluck.plan.exactness import why_not_alike
from potluck.program.blueprint import ModelBlueprint
from potluck.recover.placement import Restart
from potluck.types import Plan
from potluck.units import size_text
from potluck.wire import messages

# More, for devices that this side could not hear: they take 12 s to notice it, and a knock with its answer may take as
# long again.
_NOTICING_S = 30.0
# In which a device that does not answer others is noticed by its own connection: silence takes less than 3 s.
_CAUSE_S = 4.0


class Coordinator:
    """Everything that outlives a term: who is here, the plans there were, what went wrong, and how to go on."""

    def __init__(self, live: LiveFleet, prepared: PreparedJob, changes: Replanner, term: TermContext) -> None:
        """`term` says where the run starts: by which plan, before which round."""
        self._live, self._prepared, self._changes, self._term, self._run = live, prepared, changes, term, term.run
        self._announcer = Announcer(term.run)
        self.blueprint = ModelBlueprint(prepared.built.programs)
        self._replacement = Replacement(live, prepared, changes)
        self._incidents: list[IncidentRecord] = []  # that are not told yet
        self._better = False  # a better plan than the nearest may be found in the background
        self._noticed_s = time.monotonic()
        self._machines: dict[str, tuple[str, str, int, str]] = {}
        self._used: set[Plan] = set()
        self._asked: ComputePlan | None = None
        self._stop: StopRun | None = None
        self._coordinator: RoundLoop | None = None
        self.state: ClusterState

    def open(self, before: Mapping[int, Plan]) -> None:
        """The first term, where everything comes from the coordinator; or, where there were terms before and devices
        held on to their states, the next one."""
        s, start, here = self._run, self._term, tuple(self._live.roster.links)
        step: ClusterStep
        if before:
            committed = s.folder.ledger.rounds
            away = [d for d in before[max(before)].devices if d not in here]
            holders = [d for d, hello in self._live.roster.hellos.items() if hello.holds == s.folder.run_id]
            self._used.update(before.values())  # what they computed is in the ledger
            step = reopened(
                before, rounds=s.order.rounds, committed=committed, saved=s.model.round, here=here, away=away,
                holders=[d for d in holders if d in here], blueprint=self.blueprint,
            )  # fmt: skip
        else:
            step = opened(
                start.plan, term=self._live.next_term(start.term), rounds=s.order.rounds, first=start.first_round,
                here=here, blueprint=self.blueprint,
            )  # fmt: skip
        self.state = step[0]
        self._obey_all(step[1])

    def next(self) -> RoundLoop:
        """The coordinator of the next term, as soon as it is in force; an error if there is no way on."""
        deadline = 0.0
        phase: tuple[str, int, tuple[str, ...]] = ("", -1, ())
        while True:
            if self._stop is not None:
                raise self._reason_to_stop(self._stop)
            if self.state.phase == "training" and self._coordinator is not None:
                return self._coordinator
            if self.state.phase == "planning" and self._asked is not None:
                self._plan(self._asked)
                continue
            now = (self.state.phase, self.state.term, self.state.waiting)
            if now != phase:
                phase = now
                deadline = time.monotonic() + self._patience_s()
            self._pump(deadline)

    def _patience_s(self) -> float:
        """How long to wait for what the phase waits for."""
        if self.state.phase == "seeking":
            return _CAUSE_S
        back = self.state.phase == "asking" and any(d not in self.state.here for d in self.state.waiting)
        return min(self._run.return_s + _NOTICING_S, self._run.timeout_s) if back else self._run.timeout_s

    def _pump(self, deadline: float) -> None:
        """What one device says, or that nobody says anything."""
        waiting = ", ".join(sorted(self.state.waiting))
        words = f"waiting for {waiting} to {'prepare' if self.state.phase == 'preparing' else 'say what they hold'}"
        try:
            device, message = self._live.roster.next(deadline, words)
        except Overdue as overdue:
            late: dict[str, Event] = {"asking": Stalled(), "seeking": NoCause()}
            self.tell(late.get(self.state.phase, Broken(term=self.state.term, why=str(overdue))))
        except DeviceLost as lost:
            self.tell(Lost(device=lost.device, why=lost.why, silent=lost.silent))
        else:
            self.hear(device, message)

    def hear(self, device: str, message: object) -> None:
        """Something that a device says, whatever the phase."""
        match message:
            case messages.Prepared():
                self.tell(IsPrepared(device=device, term=message.term))
            case messages.Holding():
                self.tell(Holds(device=device, term=message.term, states=message.states))
            case messages.Interrupted():
                between = None if message.peer is None else (device, message.peer)
                self.tell(Broken(term=message.term, why=f"device {device}: {message.text}", between=between))
            case messages.Ready() | messages.Committed() | messages.Stored():
                pass  # of a term that is over
            case messages.Linked():
                awaited = device in self.state.waiting  # with what it holds: measuring would take that room
                self.tell(Joined(device=device))
                if not awaited:
                    self._run.heard(device, message)
            case _:
                self._run.heard(device, message)

    def tell(self, event: Event) -> list[Order]:
        """Something happens. What is to be done is done, but for what only who trains can do, which is returned."""
        self.state, orders = transition(self.state, event, self.blueprint)
        rest = self._obey_all(orders)
        if isinstance(event, Lost):  # now that the others know
            self._changes.lost(event.device, event.why)
        return rest

    @property
    def training(self) -> bool:
        """Whether the term in force goes on."""
        return self.state.phase == "training"

    @property
    def open_rounds(self) -> OpenRounds:
        """Which rounds are open, may be begun and may be committed."""
        return self.state.open_rounds

    def _obey_all(self, orders: list[Order]) -> list[Order]:
        rest: list[Order] = []
        for order in orders:
            match order:
                case Settle() | Commit():
                    rest.append(order)
                case GiveUpTerm():
                    self._abandon(order)
                case Drop():
                    self._live.roster.drop(order.device, "is connected and does not answer")
                case ComputePlan():
                    self._asked = order
                case PrepareTerm():
                    self._prepare(order)
                case Note():
                    self._note(order)
                case Adopt():
                    self._adopt(order)
                case Idle():
                    self._announcer.incident("left", self.state.committed, order.why, "it was not in use", order.device)
                case StopRun():
                    self._stop = order
                case SeekCause():
                    pass  # `next` waits for it
        return rest

    def _abandon(self, order: GiveUpTerm) -> None:
        self._noticed_s = time.monotonic()
        here = [device for device in order.devices if device in self._live.roster.specs]
        run = self._run.folder.run_id
        self._live.roster.broadcast(messages.Abandon(run=run, term=order.term, reason=order.reason), here)
        self._live.link.cancel(order.reason)
        self._replacement.cancel()
        if self._coordinator is not None:
            self._coordinator.saver.abandon()

    def _plan(self, asked: ComputePlan) -> None:
        self.tell(Saved(round=self._run.model.round))
        plan = self._replacement_for(asked)
        left = ", ".join(d for d in asked.force.devices if d not in asked.without) or "nobody"
        why = "" if plan is not None else f"{asked.why} ({left} left: no plan fits)"
        self.tell(Planned(number=asked.number, term=self._live.next_term(self.state.term), plan=plan, why=why))

    def _replacement_for(self, asked: ComputePlan) -> Plan | None:
        return self._replacement.find(asked)

    def _prepare(self, order: PrepareTerm) -> None:
        """On disk first: a coordinator that comes back must know every plan that a device may hold a stage of."""
        plan, before, run = order.plan, self._term, self._run
        for device, hello in self._live.roster.hellos.items():  # another machine may give other last bits
            self._machines[device] = (hello.host, hello.device.kind, hello.device.threads, hello.torch_version)
        self._used.add(plan)
        run.folder.keep_profile(self._changes.profile)
        run.folder.terms.append(Term(term=order.term, round=order.round, plan=plan))
        run.folder.ledger.fsync |= len(plan.devices) > 1
        self._term = term = dataclasses.replace(
            before, plan=plan, layout=self.blueprint.layout(plan), term=order.term, first_round=order.round,
            plan_reason=order.reason or before.plan_reason, copies=self._replacement.has_room_for_copies(plan),
            other_bits=why_not_alike(self._used, self._prepared.facts, self._machines),
        )  # fmt: skip
        self._changes.adopted(plan)
        self._coordinator = RoundLoop(term, self, self._announcer)
        start_term(term, Restart(order.round, order.moves), order.devices)

    def _note(self, order: Note) -> None:
        """Remembers what happened, to be told when everybody is ready."""
        moved = Restart(order.round, order.moves).moved_bytes(self.blueprint.sizes)
        again = f"{order.replayed} round{'s' * (order.replayed > 1)} trained again, " if order.replayed else ""
        reason = "" if order.reason == order.what else f"{order.reason}: "
        self._incidents.append(
            IncidentRecord(
                kind=order.kind, round=order.round, device=order.devices[0] if order.devices else None,
                what=order.what, action=f"{reason}{again}{size_text(moved)} moved",
                at_s=self._noticed_s - self._run.started_s, replayed_rounds=order.replayed, moved_bytes=moved,
            )
        )  # fmt: skip
        self._better = order.kind in ("lost", "link")

    def _adopt(self, order: Adopt) -> None:
        """Says what happened since the last term was in force."""
        self._live.roster.watch(self.state.plan.devices)
        self._live.holding = False
        now_s = self._announcer.at_s()
        for incident in self._incidents:
            self._announcer.say(replace(incident, recovery_s=now_s - incident.at_s))
        self._incidents.clear()
        for device in order.release:
            self._changes.gone(device)
            if device in self._live.roster.specs:
                self._live.roster.release(device)
        self._changes.apart = self.state.apart
        if self._better:
            self._better = False
            self._changes.look_for_better()
        self._replacement.look_ahead(self.state.plan, self.state.apart)

    def _reason_to_stop(self, order: StopRun) -> PotluckError:
        if not order.poison or self.state.committed >= self._run.order.rounds:
            return DeviceError(f"{order.why}; {self._live.roster.what_now}")
        ids = self._run.order.round(self.state.committed).ids
        return PotluckError(f"{order.why}; look at samples {min(ids)} to {max(ids)}, {len(ids)} of them")

    def failed(self, error: PotluckError) -> None:
        """Writes that the run ended by an error."""
        if self._coordinator is not None:
            self._announcer.ended(self._coordinator.committed, "failed", str(error))

    def spares(self, devices: Sequence[str]) -> bool:
        """Whether there is a plan without these."""
        state = self.state
        order = ComputePlan(number=0, force=state.plan, without=tuple(devices), held={}, apart=state.apart)
        return self._replacement.find(order) is not None

    def close(self) -> None:
        """Waits for nothing."""
        self._replacement.close()
