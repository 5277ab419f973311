"""The coordinator's process in a simulated world, from its start to its end or its crash.

It does what `coordinator/coordinator.py` and `coordinator/rounds/round_loop.py` do: it turns messages into events and
orders into deeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from potluck.control.cluster import ClusterStep, transition
from potluck.control.cluster_events import (
    Adopt,
    Began,
    Broken,
    Commit,
    ComputePlan,
    Drop,
    Event,
    GiveUpTerm,
    Holds,
    Idle,
    IsPrepared,
    IsReady,
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
    WantedChange,
    Written,
)
from potluck.control.cluster_state import ClusterState
from potluck.control.open_rounds import OpenRounds
from potluck.job.optimizers import SGD
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.recover.copies import Copying, guardians, wards
from potluck.recover.repartition import nearest
from potluck.simulate.numbers_for_tensors import Numbers
from potluck.simulate.simulated_device import Device
from potluck.simulate.small_model import BLOCKS, SmallModel, even, seconds
from potluck.simulate.world import Disk, Violation, World
from potluck.types import COORDINATOR, Move
from potluck.wire import messages

_CAUSE_S, _PATIENCE_S, _RETURN_S = 4.0, 20.0, 30.0
_SAVE_EVERY = 5
_RUN = "run"


class RunAround(Protocol):
    """What is there whether the coordinator is up or not."""

    rounds: int  # of the whole run

    @property
    def world(self) -> World: ...
    @property
    def model(self) -> SmallModel: ...
    @property
    def disk(self) -> Disk: ...
    @property
    def devices(self) -> Mapping[str, Device]: ...
    @property
    def expected(self) -> list[Numbers]: ...  # round → what every tensor is after so many rounds

    def send(self, device: str, message: messages.FromCoordinator) -> None: ...
    def close(self, device: str) -> None: ...
    def failpoint(self, who: str, order: object) -> None: ...
    def adopted(self) -> None: ...
    def end(self, finished: bool, why: str) -> None: ...


class SimulatedCoordinator:
    """One life of the coordinator."""

    def __init__(self, scene: RunAround) -> None:
        self._scene, self._world = scene, scene.world
        self.up = True
        self.wish: str | None = None  # a newcomer
        self._events: deque[Event] = deque()
        self._copying = Copying(even(list(scene.devices), 1), 0, enabled=False)
        self._reports: dict[int, dict[str, Numbers]] = {}
        self._held = scene.disk.saved  # rounds of the model that it has
        self._leaving: list[str] = []
        self._promised = False  # devices wait for the next round, whatever is wanted by then
        self._deadline = 0
        self.state: ClusterState

    def start(self, first: ClusterStep) -> None:
        """Begins to drive its state machine."""
        self.state, orders = first
        self._obey_all(orders)
        self._drain()

    def tell(self, event: Event) -> None:
        """Something happens; nobody hears it who is not up."""
        if self.up:
            self._events.append(event)
            if len(self._events) == 1:
                self._drain()

    def _drain(self) -> None:
        while self._events and self.up:
            self.state, orders = transition(self.state, self._events[0], self._scene.model)
            self._obey_all(orders)
            if not self.up:
                return
            refused = isinstance(self._events.popleft(), WantedChange) and self.state.phase == "training"
            if refused:
                self._begin()
        self._wait()

    def _obey_all(self, orders: list[Order]) -> None:
        for order in orders:
            if self.up:
                self._scene.failpoint(COORDINATOR, order)
            if self.up:
                self._obey(order)

    def _wait(self) -> None:
        """A deadline for whatever is awaited; anything that happens moves it."""
        self._deadline += 1
        number = self._deadline
        away = any(d not in self.state.here for d in self.state.waiting)
        seconds = _RETURN_S if self.state.phase == "asking" and away else _PATIENCE_S

        def late() -> None:
            if number == self._deadline:
                asking = self.state.phase == "asking"
                self.tell(Stalled() if asking else Broken(term=self.state.term, why="nothing happens"))

        self._world.after(seconds, late)

    def _obey(self, order: Order) -> None:
        match order:
            case GiveUpTerm():
                for device in order.devices:
                    self._scene.send(device, messages.Abandon(run=_RUN, term=order.term, reason=order.reason))
            case SeekCause():
                self._after(_CAUSE_S, NoCause())
            case Drop():
                self._scene.close(order.device)
            case ComputePlan():
                self._compute(order)
            case PrepareTerm():
                self._prepare(order)
            case Adopt():
                self._scene.adopted()
                for device in order.release:
                    self._scene.send(device, messages.Stop(reason=messages.HANDED_OVER))
                self._begin()
            case Settle():
                self._write(order.round)
                self._events.append(Written(round=order.round))
            case Commit():
                if len(self.state.plan.devices) > 1:
                    for device in self.state.plan.devices:
                        self._scene.send(device, messages.Verdict(round=order.round, kind="commit"))
                self._begin()
            case StopRun():
                self._scene.end(False, order.why)
            case Note() | Idle():
                pass

    def _after(self, seconds: float, event: Event) -> None:
        self._world.after(seconds, lambda: self.tell(event))

    def _compute(self, order: ComputePlan) -> None:
        idle = [d for d in self.state.here if d not in order.force.devices and d not in order.without]
        plan = order.wish
        if plan is None:
            plan = nearest(order.force, order.without, idle, seconds, order.apart)
        words = "" if plan is not None else f"{order.why} (no plan fits)"
        self._after(
            self._world.random.uniform(0.01, 0.5),
            Planned(number=order.number, term=self.state.term + 1, plan=plan, why=words),
        )

    def _prepare(self, order: PrepareTerm) -> None:
        self._scene.disk.plans = {**self._scene.disk.plans, order.term: order.plan}
        guarded = guardians(order.plan)
        self._copying, self._promised = Copying(order.plan, order.term, first_s=self._world.now), False
        self._reports.clear()
        for device in order.devices:
            self._scene.send(
                device,
                messages.Prepare(
                    run=_RUN, term=order.term, round=order.round, plan=order.plan, program="", peers={},
                    optimizer=SGD(lr=0.1),
                    moves=tuple(m for m in order.moves if device in (m.source, m.target)), seed=0, clip_norm=None,
                    own_commit=len(order.plan.devices) == 1, window_bytes=0, guardian=guarded.get(device),
                    wards=wards(order.plan, device),
                ),
            )  # fmt: skip
        for move in order.moves:
            if move.source == COORDINATOR:
                self._give(order.term, move)

    def _give(self, term: int, move: Move) -> None:
        if move.held.round != self._held:
            raise Violation(f"the coordinator was asked for {move.held} and has {self._held}")
        numbers = {name: self._scene.expected[self._held][name] for name in move.names}
        target = self._scene.devices[move.target]
        self._world.carry(
            COORDINATOR, move.target,
            lambda: target.take_piece(term, move, numbers) if self.up else None,
        )  # fmt: skip

    def _begin(self) -> None:
        """The next rounds, or what wants another plan before them; or the end."""
        state = self.state
        if state.phase != "training":
            return
        if state.committed == self._scene.rounds:
            if self._held == self._scene.rounds:
                self._scene.end(True, "")
            return
        if not state.open_rounds.reports and (change := self._change()) is not None:
            self._events.append(change)
            return
        rounds = state.open_rounds
        while rounds.may_begin(rounds.next) and not self._first_end_those(rounds):
            self._begin_one(rounds.next)
            rounds = rounds.begin(rounds.next)

    def _first_end_those(self, rounds: OpenRounds) -> bool:
        """Whether rounds that are open are committed before another begins."""
        if rounds.next == self._scene.rounds:
            return True
        return bool(rounds.reports) and not self._promised and (self._wanted or self._saves_after(rounds.next - 1))

    @property
    def _wanted(self) -> bool:
        return bool(self._leaving) or self.wish is not None

    def _saves_after(self, round: int) -> bool:
        return (round + 1) % _SAVE_EVERY == 0 or round + 1 == self._scene.rounds

    def _begin_one(self, round: int) -> None:
        copy = self._copying.due(self._world.now)
        if copy:
            self._copying.ordered(round + 1, self._world.now)
        point = max(self._copying.point or 0, self._held)
        plan = self.state.plan
        overlaps = not schedule_named(plan.schedule).flushes and len(plan.devices) > 1
        self._promised = overlaps and not self._saves_after(round) and not self._wanted
        begin = messages.Begin(
            round=round, sizes=(), total_weight=1.0, lr_scale=1.0, snapshot=self._saves_after(round), copy=copy,
            point=point, follows=self._promised,
        )  # fmt: skip
        for device in self.state.plan.devices:
            self._scene.send(device, begin)
        self._events.append(Began(round=round))

    def _change(self) -> WantedChange | None:
        leaving = tuple(d for d in self._leaving if d in self.state.plan.devices)
        if leaving and len(leaving) < len(self.state.plan.devices):
            self._leaving = []
            return WantedChange(kind="left", why="leaves", devices=leaving)
        wish, self.wish = self.wish, None
        if wish is None or wish not in self.state.here:
            return None
        devices = [*(d for d in self.state.plan.devices if d != wish), wish]
        stages = self._world.random.randint(1, min(BLOCKS, len(devices)))
        plan = even(devices, stages, self.state.plan.schedule)
        return WantedChange(kind="joined", why="a better plan", devices=(wish,), plan=plan)

    def _write(self, round: int) -> None:
        ledger = self._scene.disk.ledger
        if round > len(ledger):
            raise Violation(f"round {round} is committed after round {len(ledger) - 1}")
        if round == len(ledger):
            ledger.append(round)
        self._scene.disk.flush_ledger()

    # --- what devices say

    def hear(self, device: str, message: messages.FromAgent) -> None:
        """A device says something."""
        match message:
            case messages.Prepared():
                self.tell(IsPrepared(device=device, term=message.term))
            case messages.Ready():
                self.tell(IsReady(device=device, round=message.round))
            case messages.Committed():
                self.tell(IsReady(device=device, round=message.ready.round))
            case messages.Interrupted():
                between = None if message.peer is None else (device, message.peer)
                self.tell(Broken(term=message.term, why=message.text, between=between))
            case messages.Holding():
                self.tell(Holds(device=device, term=message.term, states=message.states))
            case messages.Stored():
                self._copying.stored(device, message.held, self._world.now)
            case messages.Leaving():
                self._leaving.append(device)

    def take_state(self, device: str, round: int, numbers: Numbers) -> None:
        """A device's state, for the checkpoint."""
        found = self._reports.setdefault(round, {})
        found[device] = numbers
        if set(found) == set(self.state.plan.devices):
            self._checkpoint(round, found)

    def _checkpoint(self, round: int, found: dict[str, Numbers]) -> None:
        whole: Numbers = {name: number for numbers in found.values() for name, number in numbers.items()}
        wrong = [name for name in self._scene.model.sizes if whole.get(name) != self._scene.expected[round][name]]
        if wrong:
            raise Violation(f"the checkpoint of round {round} has other numbers of {wrong}")
        self._held = self._scene.disk.saved = round
        self.tell(Saved(round=round))
        if round == self._scene.rounds and self.up and not self._world.over:
            self._begin()
            self._drain()
