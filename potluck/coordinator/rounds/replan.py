"""What wants another plan while a run trains: somebody leaves in order, somebody joins, a better plan is found.

Nothing is lost by any of them. The next plan comes into force between two rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec.structs import replace

from potluck.control.cluster_events import ChangeKind, WantedChange
from potluck.control.drift import Drift
from potluck.control.idle import idle_reasons, not_worth_it
from potluck.control.setbacks import UnreachedPair
from potluck.coordinator.fleet.fleet_profile import as_measured, measure_order, offer_samples
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.rounds.search_elsewhere import Finder, Question, SearchElsewhere
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.errors import OUT_OF_MEMORY, PlanError
from potluck.metrics.lanes import busy_s
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.events.refine import at_pace
from potluck.plan.groups import shareable
from potluck.plan.search.plan_search import Found
from potluck.profile.borrow import with_lent_memory
from potluck.profile.members import limited, of_devices, with_newcomer
from potluck.recover.repartition import estranged
from potluck.types import IdleReason, Plan, Profile, RoundRecord
from potluck.units import milliseconds, size_text
from potluck.wire.messages import Leaving, Linked, Measured

_MEASURE_S = 5.0  # at most, that a newcomer measures the model
_SWITCH_S = 2.0  # what a change of plans costs beside what moves
_FULL = 0.8  # of its memory that a plan gives a device: if it just ends then, that may be why
_LESS = 0.9  # of what it had to hold then
_ENDED = "is gone (the connection"  # rather than silent


class Replanner:
    """Who comes and goes, and the search for a better plan, in the background."""

    def __init__(
        self, live: LiveFleet, prepared: PreparedJob, profile: Profile | None, options: Options,
        find: Finder | None = None,
    ) -> None:  # fmt: skip
        self._elsewhere = SearchElsewhere()
        self.find: Finder = find or self._elsewhere
        self._live, self._prepared, self._say = live, prepared, options.progress
        self._measure_s, self._plan_s = min(_MEASURE_S, options.profile_s), options.plan_s
        self._worth = options.replan_gain
        self.profile = profile
        self._given = "the plan was given" if options.plan is not None else "no device was measured"
        self.force: Plan | None = None  # the plan in force
        self._judged: tuple[Plan | None, Mapping[str, str]] = (None, {})  # a plan, and why it does without whom
        self.apart: tuple[UnreachedPair, ...] = ()  # devices that must not be in a plan together
        self._idle: dict[str, IdleReason] = {}  # as it was last
        self._drift = Drift()
        self._slow: tuple[str, ...] = ()  # devices whose pace has changed, if that is why a plan is looked for
        self._leaving: list[str] = []
        self._samples: str | None = None
        self.measuring: set[str] = set()  # newcomers that are not done with it
        self._budgets: dict[str, int] = {}  # of devices that ran out of memory: less than they had to hold then
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="potluck-planning")
        self._search: Future[Found | None] | None = None

    def adopted(self, plan: Plan) -> None:
        self.force, self._slow = plan, ()
        self._drift.adopted()

    def judged(self, plan: Plan, left_out: Mapping[str, str]) -> None:
        """The planner says why this plan does without some devices."""
        self._judged = (plan, left_out)

    def idle(self) -> dict[str, IdleReason]:
        """Who is here and has no part in the plan in force, and why."""
        force, (judged, left_out) = self.force, self._judged
        here = [d for d in list(self._live.roster.links) if d not in self._leaving]
        if force is None:
            return {}
        known = left_out if judged == force else {}
        self._idle = idle_reasons(
            force, here, given=self._given if self.profile is None else "", apart=self.apart, left_out=known,
            looked_for={d for d in here if d in self.measuring or (self._search is not None and d not in known)},
            before={d: reason for d, reason in self._idle.items() if d not in self.measuring},
        )  # fmt: skip
        return self._idle

    def observed(self, record: RoundRecord) -> None:
        """A round is committed; a device that has become slow, or fast again, wants another plan."""
        if self.profile is None or self._search is not None:
            return
        changed = self._drift.see({device: busy_s(took) for device, took in record.spent_s.items()})
        if changed:
            self.profile = at_pace(self.profile, changed)
            words = ", ".join(f"{d} takes {f:.1f} times as long as before" for d, f in changed.items())
            self._say(f"{words}; looking for a better plan")
            self.look_for_better()
            self._slow = tuple(changed)

    def heard(self, device: str, message: object) -> None:
        """Something that is not about the round in hand."""
        if isinstance(message, Leaving) and device not in self._leaving:
            self._leaving.append(device)
        elif isinstance(message, Linked):
            self.gone(device)  # it may have left before, under this name
            self._welcome(device)
        elif isinstance(message, Measured):
            self.measuring.discard(device)
            self._measured(device, message)

    def measure_unknown(self) -> None:
        """Has those measured that came in place of others which were lost while everybody was."""
        known = set() if self.profile is None else {d.device.name for d in self.profile.devices}
        for device in sorted(set(self._live.roster.links) - known if known else ()):
            self._welcome(device)

    def _measured(self, device: str, message: Measured) -> None:
        if message.profile is not None and self.profile is not None and device in self._live.roster.hellos:
            hello = self._live.roster.hellos[device]
            own = as_measured(self._prepared, message.profile, hello.host, message)
            new = with_lent_memory(own, self.profile.devices)
            self.profile = with_newcomer(self.profile, limited(new, self._budgets.get(device)))
            self._say(f"{device} is measured; looking for a plan with it")
            self.look_for_better()

    def lost(self, device: str, why: str) -> None:
        """A device of the plan in force is lost; one that ran out of memory will be given less, should it come back."""
        profile, plan = self.profile, self.force
        if profile is None or plan is None or device not in plan.devices:
            return
        known = next((d for d in profile.devices if d.device.name == device), None)
        if known is None:
            return
        use = peak_bytes(plan, self._prepared.facts, tables=Tables(profile))[device]
        need = use.total + known.idle_bytes
        limit = known.device.memory_bytes
        if OUT_OF_MEMORY in why or (0 < limit < need / _FULL and _ENDED in why):
            self._budgets[device] = int(_LESS * need)
            here = (limited(d, self._budgets.get(d.device.name)) for d in profile.devices)
            self.profile = replace(profile, devices=tuple(here))
            self._say(f"{device} ran out of memory: it is given no more than {size_text(self._budgets[device])} again")

    def _welcome(self, device: str) -> None:
        if self.profile is None:  # it stays idle
            return
        if self._samples is None:
            self._samples = offer_samples(self._live, self._prepared)
        self._say(f"{device} joined and measures the model")
        self.measuring.add(device)
        self._live.roster.send(device, measure_order(self._prepared, self._samples, self._measure_s))

    def look_for_better(self) -> None:
        """Searches for a plan for whoever is here, in the background; `due` tells when it is worth it."""
        self._slow = ()
        self._search = None if self.profile is None else self._pool.submit(self._find)

    def _find(self) -> Found | None:
        plan, profile = self.force, self.profile
        if profile is None or plan is None:
            return None
        facts = shareable(self._prepared.facts, self._prepared.job.batchnorm)
        away = {*self._leaving, *estranged(plan.devices, self.apart)}
        here = [d for d in list(self._live.roster.specs) if d not in away]
        sizes = [(plan.micro_batch_size, plan.micro_batches)]
        try:
            here_profile = of_devices(profile, here)
            return self.find(
                Question(
                    facts=facts, profile=here_profile, sizes=sizes, seconds=self._plan_s, schedule=plan.schedule
                )
            )  # fmt: skip
        except PlanError:
            return None

    def due(self, rounds_left: int) -> WantedChange | None:
        """What is to change before the next round."""
        leaving = tuple(d for d in self._leaving if self.force is not None and d in self.force.devices)
        if leaving:
            return WantedChange(kind="left", why=f"{', '.join(leaving)} leaves", devices=leaving)
        for device in list(self._leaving):
            if device in self._live.roster.specs:
                self._live.roster.release(device)
            self.gone(device)
        if self._search is None or not self._search.done():
            return None
        found, self._search = self._search.result(), None
        if found is None or not set(found.plan.devices) <= set(self._live.roster.links):
            return None
        self.judged(found.plan, dict(found.left_out))
        return None if found.plan == self.force else self._if_worth_it(found.plan, rounds_left)

    def _if_worth_it(self, plan: Plan, rounds_left: int) -> WantedChange | None:
        if self.profile is None or self.force is None:
            return None
        facts = self._prepared.facts
        now_s, then_s = (simulate(p, facts, self.profile).round_s for p in (self.force, plan))
        gain_s = now_s - then_s
        if gain_s < self._worth * now_s or gain_s * rounds_left < self._moving_s():
            why = not_worth_it(gain_s / now_s if now_s else 0.0)
            self.judged(self.force, {**dict.fromkeys(plan.devices, why), **self._judged[1]})
            return None
        words = f"a better plan: {milliseconds(then_s)} a round instead of {milliseconds(now_s)}"
        joined = tuple(d for d in plan.devices if d not in self.force.devices)
        kind: ChangeKind = "slow" if self._slow else "joined" if joined else "plan"
        return WantedChange(kind=kind, why=words, devices=self._slow or joined, plan=plan)

    def _moving_s(self) -> float:
        """What a change costs at most: the whole model over one link."""
        blocks = self._prepared.facts.blocks
        size = sum(b.weight_bytes + self._prepared.facts.optimizer_slots * b.trainable_bytes for b in blocks)
        rates = (
            [link.bandwidth_bytes_s for link in self.profile.links if link.bandwidth_bytes_s] if self.profile else []
        )
        return _SWITCH_S + (size / min(rates) if rates else 0.0)

    @property
    def leaving(self) -> tuple[str, ...]:
        """Who asked to be let go."""
        return tuple(self._leaving)

    def gone(self, device: str) -> None:
        """It has left, or is lost."""
        self._leaving = [d for d in self._leaving if d != device]
        self.measuring.discard(device)

    def close(self) -> None:
        """Waits for nothing."""
        self._elsewhere.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
