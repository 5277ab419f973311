"""The event simulation: every device walks the action list the executor walks, in virtual time.

It is the finer half of the cost model. Compute takes what the profile says; a message leaves its sender after those
before it, occupies the way for its size, and arrives a latency later. On a half-duplex medium a device sends or
receives, one message at a time; on a shared one only one message is on its way at any time. On a full-duplex one, what
many send to one at once, to be summed, arrives at the rate of that one's line. Links that share a line (a trunk between
two rooms) take turns on it. Who comes first is served first.
Back-pressure is not simulated: a schedule gives links the room that a plan needs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from potluck.metrics.lanes import Span, computed_s
from potluck.plan.cost.tables import Tables
from potluck.plan.cost.traffic import Messages, PlannedMessage
from potluck.plan.events.simulated_steps import SUMMING, MessageKey, SimulatedStep, SummingSteps
from potluck.plan.schedule.action_list import ROUNDS_AHEAD, Action
from potluck.plan.schedule.holders import stage_of
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.schedule.segments import UnderWay, segment
from potluck.types import COORDINATOR, ModelFacts, Plan, Profile, Stage

# What a message takes: devices, and a line that links share, if there is one; no device has an arrow in its name.
_Ports = tuple[str, ...]


class _Leaving(NamedTuple):
    """A message that leaves its sender for a line which others share."""

    key: MessageKey
    parcel: PlannedMessage
    trunk: str


@dataclass
class Simulated:
    """What a simulation came to."""

    round_s: float  # of a round in the steady state
    busy_s: dict[str, float]  # of compute in that round, by device
    spans: list[Span] = field(default_factory=list)  # of all rounds
    ends_s: list[float] = field(default_factory=list)  # when each round was committed


def simulate(
    plan: Plan, facts: ModelFacts, profile: Profile, rounds: int = 3, tables: Tables | None = None
) -> Simulated:
    """Simulates some rounds; a round takes the mean of the last two.

    Samples are sent two rounds ahead, so where they take long to arrive, a round that waits for them and one that
    finds them there alternate.
    """
    late = schedule_named(plan.schedule).staleness
    # Where rounds overlap, the pipeline has to be full before and after what counts.
    world = _World(plan, facts, profile, tables or Tables(profile), rounds + 2 * late)
    world.run()
    last = rounds - 1 + late
    counted = min(ROUNDS_AHEAD, last)
    round_s = (world.ends[last] - world.ends[last - counted]) / counted if counted else world.ends[last]
    busy = computed_s((s for s in world.spans if s.round == last), plan.devices)
    return Simulated(round_s, busy, world.spans, world.ends)


class _Walked(NamedTuple):
    """What a device keeps of a round that it walks."""

    summing: SummingSteps
    last: list[int]  # the micro-batch whose gradients it adds last, if it has any
    owing: list[int]  # micro-batches whose weight gradients wait


class _Walker:
    """One device: the rest of its actions, its clock, and what it waits for."""

    def __init__(self, device: str, steps: Iterator[SimulatedStep]) -> None:
        self.device, self.steps = device, steps
        self.missing: set[MessageKey] = set()
        self.since = 0.0  # when it took up its step
        self.after = 0.0  # earliest time to go on, given what has arrived
        self.step: SimulatedStep | None = None
        self.sending = False  # the step is done but for what it sends


class _World:
    def __init__(self, plan: Plan, facts: ModelFacts, profile: Profile, tables: Tables, rounds: int) -> None:
        self.plan, self.profile, self.tables, self.rounds = plan, profile, tables, rounds
        self.messages = Messages(plan, facts, tables)
        self.arrived: dict[MessageKey, float] = {}
        self.waiting: dict[MessageKey, list[_Walker]] = {}
        self.ports: dict[str, float] = {}  # device, or line that links share → when it is free
        self.inlets: dict[str, float] = {}  # device → when all that was sent to it will be there
        self.ready: dict[int, dict[str, float]] = {}
        self.spans: list[Span] = []
        self.reducing: dict[str, int] = {}  # device → place of its last span of summing gradients
        self.ends: list[float] = []
        self.queue: list[tuple[float, int, _Walker | _Leaving | _Ports]] = []
        self.pending: dict[
            str, dict[int, tuple[MessageKey, PlannedMessage]]
        ] = {}  # port → messages that wait for it, by number
        self.count = 0
        self.now = 0.0

    def run(self) -> None:
        for device in (*self.plan.devices, COORDINATOR):
            steps = self._feeding() if device == COORDINATOR else self._walk(device)
            self._next(_Walker(device, steps), 0.0)
        while self.queue:
            now, _, who = heapq.heappop(self.queue)
            self.now = now
            if isinstance(who, _Walker):
                self._do(who, now)
            elif isinstance(who, _Leaving):
                self._cross(who, now)
            else:
                self._dispatch(who, now)

    def _next(self, walker: _Walker, now: float) -> None:
        """Takes up the walker's next step: now, or when what it needs is there."""
        walker.step = next(walker.steps, None)
        if walker.step is None:
            return
        walker.since = now
        missing = [key for key in walker.step.needs if key not in self.arrived]
        walker.after = max([now, *(self.arrived[k] for k in walker.step.needs if k in self.arrived)])
        walker.missing = set(missing)
        if missing:
            for key in missing:
                self.waiting.setdefault(key, []).append(walker)
        else:
            self._push(walker.after, walker)

    def _push(self, when: float, who: _Walker | _Leaving | _Ports) -> None:
        self.count += 1
        heapq.heappush(self.queue, (when, self.count, who))

    def _do(self, walker: _Walker, now: float) -> None:
        step = walker.step
        if step is None:
            return
        if step.seconds and not walker.sending:
            walker.after = done = now + step.seconds
            self._note(walker, step, now, done)
            if step.sends:  # others may have something to send meanwhile: first come is first served
                walker.sending = True
                self._push(done, walker)
                return
        else:
            done = now
            if step.kind == "reduce" and not walker.sending:
                self._note(walker, step, now, done)
        walker.sending = False
        for key, parcel in step.sends:
            self._post(key, parcel, done)
        if step.kind == "ready":
            self._report(walker.device, step.round, done)
        self._next(walker, done)

    def _note(self, walker: _Walker, step: SimulatedStep, start: float, done: float) -> None:
        """Remembers what a device did; summing gradients is one span from its beginning to its end, with waits."""
        if step.kind != "reduce":
            self.spans.append(Span(walker.device, step.kind, step.round, step.micro_batch, start, done))
            return
        place = self.reducing.get(walker.device)
        if place is not None and self.spans[place].round == step.round:
            self.spans[place] = self.spans[place]._replace(stop_s=done)
        elif done > walker.since:
            self.reducing[walker.device] = len(self.spans)
            self.spans.append(Span(walker.device, step.kind, step.round, step.micro_batch, walker.since, done))

    def _post(self, key: MessageKey, parcel: PlannedMessage, now: float) -> None:
        trunk = self.tables.trunk(parcel.source, parcel.target)
        if self.profile.medium == "half":
            self._hand_over(key, parcel, now)
        elif self.profile.medium == "full" and trunk:
            self._set_out(_Leaving(key, parcel, trunk), now)
        else:
            self._arrive(key, self._send(parcel, self._taken(parcel), now))

    def _taken(self, parcel: PlannedMessage) -> _Ports:
        """All that a message takes for as long as it is being sent."""
        if self.profile.medium == "shared":
            return ("",)
        if self.profile.medium == "full":
            return (parcel.source,)
        trunk = self.tables.trunk(parcel.source, parcel.target)
        return (parcel.source, parcel.target, trunk) if trunk else (parcel.source, parcel.target)

    def _hand_over(self, key: MessageKey, parcel: PlannedMessage, now: float) -> None:
        """Half-duplex: a message is sent when all it takes is free; until then, others may use what is."""
        ports = self._taken(parcel)
        if any(self.ports.get(port, 0.0) > now for port in ports):
            self.count += 1
            for port in ports:
                self.pending.setdefault(port, {})[self.count] = (key, parcel)
            return
        self._arrive(key, self._send(parcel, ports, now))
        if parcel.transfer_s:
            self._push(self.ports[parcel.source], ports)

    def _dispatch(self, ports: _Ports, now: float) -> None:
        """What a message took is free again: what has waited longest for some of it, and can go, goes."""
        waiting = dict(item for port in ports for item in self.pending.get(port, {}).items())
        for number in sorted(waiting):
            if all(self.ports[port] > now for port in ports):
                return
            key, parcel = waiting[number]
            taken = self._taken(parcel)
            if all(self.ports.get(port, 0.0) <= now for port in taken):
                for port in taken:
                    del self.pending[port][number]
                self._hand_over(key, parcel, now)

    def _send(self, parcel: PlannedMessage, ports: _Ports, now: float) -> float:
        """When a message is there. Messages come in the order of time, so first come is first served."""
        start = max([now, *(self.ports.get(port, 0.0) for port in ports)])
        left = start + parcel.transfer_s
        for port in ports:
            self.ports[port] = left
        if self.profile.medium == "full" and parcel.kind in SUMMING:  # many send to one: its own line is the limit
            inlet_s = self.tables.inlet_s(parcel.target, parcel.size_bytes)
            left = self.inlets[parcel.target] = max(left, self.inlets.get(parcel.target, 0.0) + inlet_s)
        return left + parcel.latency_s

    def _set_out(self, leaving: _Leaving, now: float) -> None:
        """Full-duplex: a message takes the line that others share when it leaves, not while it waits for its sender.

        Were the line taken at once, it would stand idle until then, and others would wait for it.
        """
        source, size_bytes = leaving.parcel.source, leaving.parcel.size_bytes
        start = max(now, self.ports.get(source, 0.0))
        self.ports[source] = start + self.tables.outlet_s(source, size_bytes)  # free earlier than the line
        self._push(start, leaving)

    def _cross(self, leaving: _Leaving, now: float) -> None:
        """A message goes over a line that others share, after those which left their senders before it."""
        key, parcel, trunk = leaving
        self.ports[trunk] = max(now, self.ports.get(trunk, 0.0)) + parcel.transfer_s
        self._arrive(key, self.ports[trunk] + parcel.latency_s)

    def _arrive(self, key: MessageKey, when: float) -> None:
        self.arrived[key] = when
        for walker in self.waiting.pop(key, ()):
            walker.missing.discard(key)
            walker.after = max(walker.after, when)
            if not walker.missing:
                self._push(walker.after, walker)

    def _report(self, device: str, round: int, now: float) -> None:
        """When everybody is ready, the verdict goes out."""
        reports = self.ready.setdefault(round, {})
        reports[device] = now
        if len(reports) == len(self.plan.devices):
            end = max(reports.values()) + self.tables.commit_s(len(reports))
            self.ends.append(end)
            self._arrive(("verdict", round), end)

    def _feeding(self) -> Iterator[SimulatedStep]:
        """The coordinator: sends the samples of each round, a little ahead; also of those after the last simulated."""
        feeds, ahead = self.messages.feeds(), ROUNDS_AHEAD + schedule_named(self.plan.schedule).staleness
        for round in range(self.rounds + ahead):
            gate: tuple[MessageKey, ...] = (("verdict", round - ahead),) if round >= ahead else ()
            for j, parcel in feeds:
                key = ("feed", round, j, parcel.target)
                yield SimulatedStep("feed", round, j, gate, 0.0, ((key, parcel),))
                gate = ()

    def _walk(self, device: str) -> Iterator[SimulatedStep]:
        under_way, walked = UnderWay(), dict[int, _Walked]()
        for round in range(self.rounds):
            listed, under_way = segment(
                self.plan, device, self.plan.micro_batches, under_way, follows=round + 1 < self.rounds
            )
            mine = [a.micro_batch for a in listed if a.kind == "backward" and a.ago == 0]
            whole = len(mine) == sum(a.kind == "forward" for a in listed)
            last = (mine if whole else sorted(a.micro_batch for a in listed if a.kind == "forward"))[-1:]
            walked[round] = _Walked(SummingSteps(device, round, self.messages, self.arrived), last, [])
            for action in listed:
                yield from self._act(device, action, round - action.ago, walked[round - action.ago])

    def _act(self, device: str, action: Action, round: int, walked: _Walked) -> Iterator[SimulatedStep]:
        summing, owing, last = walked.summing, walked.owing, [action.micro_batch] == walked.last
        if action.kind == "weights":
            if action.micro_batch in owing:
                owing.remove(action.micro_batch)
                yield self._weights(device, round, action.micro_batch)
        elif action.kind == "verdict":
            yield SimulatedStep("update", round, -1, (("verdict", round),), self._update_s(device), ())
        elif action.kind == "reduce":
            yield from summing.finish(action.micro_batch)
        elif last and action.kind == "backward" and summing.buckets and not self._awaited(device, action.micro_batch):
            yield from self._last_backward(device, summing, action.micro_batch)
        else:
            for step in self._steps(device, action, round):
                yield from self._meanwhile(device, step, owing)
                yield step
            if action.kind == "backward" and self.messages.late(device):
                owing.append(action.micro_batch)

    def _update_s(self, device: str) -> float:
        update, (start, stop) = self.tables.devices[device].update, self._stage(device).blocks
        return float(update[stop] - update[start])

    def _stage(self, device: str) -> Stage:
        return self.plan.stages[stage_of(self.plan, device)]

    def _meanwhile(self, device: str, step: SimulatedStep, owing: list[int]) -> Iterator[SimulatedStep]:
        """Weight gradients that were put off, while what a step needs is not there."""
        while owing and step.needs:
            yield SimulatedStep(
                "weights", step.round, owing[0], (), 0.0, ()
            )  # until everybody else has come to this time
            if all(self.arrived.get(key, float("inf")) <= self.now for key in step.needs):
                return
            yield self._weights(device, step.round, owing.pop(0))

    def _weights(self, device: str, round: int, j: int) -> SimulatedStep:
        return SimulatedStep("weights", round, j, (), self.messages.compute_s(device, "weights"), ())

    def _steps(self, device: str, action: Action, round: int) -> Iterator[SimulatedStep]:
        j, kind = action.micro_batch, action.kind
        if kind in ("forward", "backward"):
            yield SimulatedStep(kind, round, j, (), self.messages.compute_s(device, kind), ())
        elif kind in ("receive_inputs", "receive_gradients"):
            parcels = self.messages.arriving(device, kind, j)
            needs: tuple[MessageKey, ...] = tuple((p.kind, round, j, p.source, p.target) for p in parcels)
            if kind == "receive_inputs" and self.messages.is_fed(device):
                needs += (("feed", round, j, device),)
            yield SimulatedStep(kind, round, j, needs, self.messages.handling_s(device, parcels), ())
        elif kind in ("send_outputs", "send_gradients"):
            parcels = self.messages.leaving(device, kind, j)
            sends: tuple[tuple[MessageKey, PlannedMessage], ...] = tuple(
                ((p.kind, round, j, p.source, p.target), p) for p in parcels
            )
            yield SimulatedStep(kind, round, j, (), self.messages.handling_s(device, parcels), sends)
        elif kind == "ready":
            yield SimulatedStep(kind, round, j, (), 0.0, ())

    def _awaited(self, device: str, j: int) -> bool:
        """Whether an earlier stage waits for the device's gradients: those go first, and sums after the backward."""
        return bool(self.messages.leaving(device, "send_gradients", j))

    def _last_backward(self, device: str, summing: SummingSteps, j: int) -> Iterator[SimulatedStep]:
        """The last backward of a round, in pieces: after each, gradients that are complete are sent and added up."""
        seconds, done = self.messages.compute_s(device, "backward"), 0.0
        for number, bucket in enumerate(summing.buckets):
            yield SimulatedStep("backward", summing.round, j, (), (bucket.ready - done) * seconds, ())
            done = bucket.ready
            yield from summing.offer(number, j)
            yield SimulatedStep("backward", summing.round, j, (), 0.0, ())  # until everybody else has come to this time
            yield from summing.poll(j, self.now)
        if done < 1.0:
            yield SimulatedStep("backward", summing.round, j, (), (1.0 - done) * seconds, ())
