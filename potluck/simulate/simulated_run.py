"""A whole run in a simulated world: both real state machines, seeded faults, and the promises checked all the time.

    outcome = simulate_run(seed)        # raises Violation, with the history, when a promise is broken

Only the clock, the lines, the disk and the numbers are made up. The coordinator's part here does what
`coordinator/coordinator.py` and `coordinator/rounds/round_loop.py` do: it turns messages into events and orders into
deeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from potluck.control.agent_events import CoordinatorGone
from potluck.control.cluster import ClusterState, ClusterStep, opened, reopened, transition
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
    WantedChange,
    Written,
)
from potluck.job.optimizers import SGD
from potluck.recover.copies import Copying, guardians, wards
from potluck.recover.repartition import nearest
from potluck.simulate.faults import Faults
from potluck.simulate.simulated_device import Device, Numbers, start_number, trained
from potluck.simulate.small_model import BLOCKS, SmallModel, even, seconds
from potluck.simulate.world import Disk, Violation, World
from potluck.types import COORDINATOR, Move
from potluck.wire import messages

UNTIL_S = 3000.0
_CAUSE_S, _PATIENCE_S, _RETURN_S = 4.0, 20.0, 30.0
_SAVE_EVERY = 5
_RUN = "run"


@dataclass
class RunOutcome:
    """How a run ended."""

    finished: bool
    why: str = ""
    terms: int = 0
    faults: list[str] = field(default_factory=list)


class SimulatedRun:
    """The coordinator and its devices in one world."""

    def __init__(
        self, seed: int, device: type[Device] = Device, disk: type[Disk] = Disk, faults: int = 4, rounds: int = 14
    ) -> None:
        self.world, self._kind = World(seed), device
        self.model = SmallModel()
        self.rounds = rounds
        self.expected: list[Numbers] = [{name: start_number(name) for name in self.model.sizes}]
        for number in range(rounds):
            self.expected.append({name: trained(value, number) for name, value in self.expected[-1].items()})
        dice = self.world.random
        count = dice.randint(2, 5)
        self.devices: dict[str, Device] = {f"d{i}": device(f"d{i}", self) for i in range(count)}
        self.disk = disk()
        self.outcome: RunOutcome | None = None
        self._faults = Faults(self, dice.randint(0, faults))
        self._connections = dict.fromkeys(self.devices, 1)
        self._lives = 0
        self._started = False
        for known in self.devices.values():
            known.connection = 1
        plan = even(list(self.devices), dice.randint(1, count))
        self._start(lambda: opened(plan, term=1, rounds=rounds, first=0, here=self.devices, blueprint=self.model))

    # --- the coordinator's process

    def _start(self, first: Callable[[], ClusterStep]) -> None:
        self._lives += 1
        self.up = True
        self._events: deque[Event] = deque()
        self._copying = Copying(even(list(self.devices), 1), 0, enabled=False)
        self._reports: dict[int, dict[str, Numbers]] = {}
        self._held_by_coordinator = self.disk.saved
        self._leaving: list[str] = []
        self._wish: str | None = None
        self._deadline = 0
        self.state: ClusterState
        self.state, orders = first()
        self._obey_all(orders)
        self._drain()

    def crash(self, seconds: float) -> None:
        """The coordinator's machine loses power; it is back after some time."""
        self.world.say(f"the coordinator crashes for {seconds:.1f} s")
        self.up = False
        self.disk.crash()
        for device in self.devices.values():
            if device.connection == self._connections.get(device.name):
                self._close(device.name)
        self.world.after(seconds, self._back)

    def _back(self) -> None:
        committed = len(self.disk.ledger)
        for device in self.devices.values():
            live = device.state.live
            alone = device.state.force is not None and device.state.force.own_commit
            if device.alive and live is not None and live.round > committed and not alone:
                raise Violation(f"{device.name} committed round {live.round - 1}, which the ledger has lost")
        plans, saved = self.disk.plans, self.disk.saved
        self._start(
            lambda: reopened(plans, rounds=self.rounds, committed=committed, saved=saved, here=(), blueprint=self.model)
        )

    def _tell(self, event: Event) -> None:
        if self.up:
            self._events.append(event)
            if len(self._events) == 1:
                self._drain()

    def _drain(self) -> None:
        while self._events and self.up:
            life = self._lives
            self.state, orders = transition(self.state, self._events[0], self.model)
            self._obey_all(orders)
            if life != self._lives or not self.up:
                return
            refused = isinstance(self._events.popleft(), WantedChange) and self.state.phase == "training"
            if refused:
                self._begin()
        self._wait()

    def _obey_all(self, orders: list[Order]) -> None:
        for order in orders:
            if self.up:
                self.failpoint(COORDINATOR, order)
            if self.up:
                self._obey(order)

    def _wait(self) -> None:
        """A deadline for whatever is awaited; anything that happens moves it."""
        self._deadline += 1
        number, life = self._deadline, self._lives
        away = any(d not in self.state.here for d in self.state.waiting)
        seconds = _RETURN_S if self.state.phase == "asking" and away else _PATIENCE_S

        def late() -> None:
            if number == self._deadline and life == self._lives and self.up:
                asking = self.state.phase == "asking"
                self._tell(Stalled() if asking else Broken(term=self.state.term, why="nothing happens"))

        self.world.after(seconds, late)

    def _obey(self, order: Order) -> None:
        match order:
            case GiveUpTerm():
                for device in order.devices:
                    self._send(device, messages.Abandon(run=_RUN, term=order.term, reason=order.reason))
            case SeekCause():
                self._after(_CAUSE_S, NoCause())
            case Drop():
                self._close(order.device)
            case ComputePlan():
                self._compute(order)
            case PrepareTerm():
                self._prepare(order)
            case Adopt():
                self._started = True
                for device in order.release:
                    self._send(device, messages.Stop(reason=messages.HANDED_OVER))
                self._begin()
            case Settle():
                self._write(order.round)
                self._events.append(Written(round=order.round))
            case Commit():
                if len(self.state.plan.devices) > 1:
                    for device in self.state.plan.devices:
                        self._send(device, messages.Verdict(round=order.round, kind="commit"))
                self._begin()
            case StopRun():
                self._end(False, order.why)
            case Note() | Idle():
                pass

    def _after(self, seconds: float, event: Event) -> None:
        life = self._lives
        self.world.after(seconds, lambda: self._tell(event) if life == self._lives else None)

    def _compute(self, order: ComputePlan) -> None:
        idle = [d for d in self.state.here if d not in order.force.devices and d not in order.without]
        plan = order.wish
        if plan is None:
            plan = nearest(order.force, order.without, idle, seconds, order.apart)
        words = "" if plan is not None else f"{order.why} (no plan fits)"
        self._after(
            self.world.random.uniform(0.01, 0.5),
            Planned(number=order.number, term=self.state.term + 1, plan=plan, why=words),
        )

    def _prepare(self, order: PrepareTerm) -> None:
        self.disk.plans = {**self.disk.plans, order.term: order.plan}
        guarded = guardians(order.plan)
        self._copying = Copying(order.plan, order.term, first_s=self.world.now)
        self._reports.clear()
        for device in order.devices:
            self._send(
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
        if move.held.round != self._held_by_coordinator:
            raise Violation(f"the coordinator was asked for {move.held} and has {self._held_by_coordinator}")
        numbers = {name: self.expected[self._held_by_coordinator][name] for name in move.names}
        target, life = self.devices[move.target], self._lives
        self.world.carry(
            COORDINATOR, move.target,
            lambda: target.take_piece(term, move, numbers) if life == self._lives and self.up else None,
        )  # fmt: skip

    def _begin(self) -> None:
        """The next round, or what wants another plan before it; or the end."""
        state = self.state
        if state.phase != "training":
            return
        if state.committed == self.rounds:
            if self._held_by_coordinator == self.rounds:
                self._end(True, "")
            return
        change = self._change()
        if change is not None:
            self._events.append(change)
            return
        round = state.committed
        copy = self._copying.due(self.world.now)
        if copy:
            self._copying.ordered(round + 1, self.world.now)
        save = (round + 1) % _SAVE_EVERY == 0 or round + 1 == self.rounds
        point = max(self._copying.point or 0, self._held_by_coordinator)
        begin = messages.Begin(
            round=round, sizes=(), total_weight=1.0, lr_scale=1.0, snapshot=save, copy=copy, point=point
        )
        for device in state.plan.devices:
            self._send(device, begin)
        self._events.append(Began(round=round))

    def _change(self) -> WantedChange | None:
        leaving = tuple(d for d in self._leaving if d in self.state.plan.devices)
        if leaving and len(leaving) < len(self.state.plan.devices):
            self._leaving = []
            return WantedChange(kind="left", why="leaves", devices=leaving)
        wish, self._wish = self._wish, None
        if wish is None or wish not in self.state.here:
            return None
        devices = [*(d for d in self.state.plan.devices if d != wish), wish]
        plan = even(devices, self.world.random.randint(1, min(BLOCKS, len(devices))))
        return WantedChange(kind="joined", why="a better plan", devices=(wish,), plan=plan)

    def _write(self, round: int) -> None:
        ledger = self.disk.ledger
        if round > len(ledger):
            raise Violation(f"round {round} is committed after round {len(ledger) - 1}")
        if round == len(ledger):
            ledger.append(round)
        self.disk.flush_ledger()

    def _end(self, finished: bool, why: str) -> None:
        if finished and (self.disk.ledger != list(range(self.rounds)) or self.disk.saved != self.rounds):
            raise Violation(f"finished with {self.disk.ledger} and a model of {self.disk.saved} rounds")
        self.outcome = RunOutcome(finished, why, self.state.term, self._faults.happened)
        self.world.over = True

    # --- lines between the coordinator and devices

    def _send(self, device: str, message: messages.FromCoordinator) -> None:
        connection, target = self._connections.get(device), self.devices[device]

        def deliver() -> None:  # also what a coordinator said that is gone by now
            if target.connection == connection:
                target.tell(message)  # type: ignore[arg-type]

        self.world.carry(COORDINATOR, device, deliver)

    def to_coordinator(self, device: str, message: messages.FromAgent) -> None:
        """A device says something."""
        connection, life = self._connections.get(device), self._lives

        def deliver() -> None:
            if self._connections.get(device) == connection and life == self._lives and self.up:
                self._hear(device, message)

        self.world.carry(device, COORDINATOR, deliver)

    def _hear(self, device: str, message: messages.FromAgent) -> None:
        match message:
            case messages.Prepared():
                self._tell(IsPrepared(device=device, term=message.term))
            case messages.Ready():
                self._tell(IsReady(device=device, round=message.round))
            case messages.Committed():
                self._tell(IsReady(device=device, round=message.ready.round))
            case messages.Interrupted():
                between = None if message.peer is None else (device, message.peer)
                self._tell(Broken(term=message.term, why=message.text, between=between))
            case messages.Holding():
                self._tell(Holds(device=device, term=message.term, states=message.states))
            case messages.Stored():
                self._copying.stored(device, message.held, self.world.now)
            case messages.Leaving():
                self._leaving.append(device)

    def state_to_coordinator(self, device: str, round: int, numbers: Numbers) -> None:
        """A device's state, for the checkpoint."""
        life, term = self._lives, self.state.term

        def deliver() -> None:
            if life != self._lives or not self.up or term != self.state.term or self.state.phase != "training":
                return
            found = self._reports.setdefault(round, {})
            found[device] = numbers
            if set(found) == set(self.state.plan.devices):
                self._checkpoint(round, found)

        self.world.carry(device, COORDINATOR, deliver, 0.05)

    def _checkpoint(self, round: int, found: dict[str, Numbers]) -> None:
        whole: Numbers = {name: number for numbers in found.values() for name, number in numbers.items()}
        wrong = [name for name in self.model.sizes if whole.get(name) != self.expected[round][name]]
        if wrong:
            raise Violation(f"the checkpoint of round {round} has other numbers of {wrong}")
        self._held_by_coordinator = self.disk.saved = round
        self._tell(Saved(round=round))
        if round == self.rounds and self.up and not self.world.over:
            self._begin()
            self._drain()

    def connect(self, device: str) -> bool:
        """A device looks for the coordinator; whether it found it."""
        if not self.up or not self.world.passes(device, COORDINATOR) or not self.world.passes(COORDINATOR, device):
            return False
        self._connections[device] = connection = self._connections.get(device, 0) + 1
        self.devices[device].connection = connection
        self.world.carry(
            device,
            COORDINATOR,
            lambda: self._tell(Joined(device=device)) if self._connections[device] == connection else None,
        )
        self._wish = device
        return True

    def _close(self, device: str) -> None:
        """The connection is over; the device notices after what was said before, sooner or later."""
        known, connection = self.devices[device], self._connections[device]
        self._connections[device] += 1

        def gone() -> None:
            if known.connection == connection:
                known.connection = 0
                known.tell(CoordinatorGone(why="closed"))

        self.world.carry(COORDINATOR, device, gone)
        self.world.after(15.0, gone)  # if a broken line has swallowed it

    def lose(self, device: str, why: str, *, silent: bool = False) -> None:
        """The coordinator notices that a device is gone."""
        if self.up and device in self.state.here:
            self._close(device)
            self._tell(Lost(device=device, why=why, silent=silent))

    def failpoint(self, who: str, order: object) -> None:
        """Between deciding and doing, anything may happen."""
        if self._started:
            self._faults.chance(who, type(order).__name__)

    def newcomer(self, name: str) -> None:
        """A device joins."""
        self.devices[name] = self._kind(name, self)
        self.connect(name)


def simulate_run(
    seed: int, device: type[Device] = Device, disk: type[Disk] = Disk, faults: int = 4, rounds: int = 14
) -> RunOutcome:
    """One run; a Violation if a promise is broken, or it neither ends nor stops."""
    run = SimulatedRun(seed, device, disk, faults, rounds)
    try:
        run.world.run(UNTIL_S)
        if run.outcome is None:
            raise Violation(f"nothing happens any more: {run.state.phase}, round {run.state.committed}")
    except Violation as error:
        story = "\n".join(run.world.history)
        raise Violation(f"seed {seed}: {error}\n{story}") from None
    return run.outcome
