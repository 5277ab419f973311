"""A whole run in a simulated world: both real state machines, seeded faults, and the promises checked all the time.

    outcome = simulate_run(seed)        # raises Violation, with the history, when a promise is broken

Only the clock, the lines, the disk and the numbers are made up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.control.agent_events import CoordinatorGone
from potluck.control.cluster import opened, reopened
from potluck.control.cluster_events import Joined, Lost
from potluck.control.cluster_state import ClusterState
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.simulate.faults import Faults
from potluck.simulate.numbers_for_tensors import Numbers, start_number, trained
from potluck.simulate.simulated_coordinator import SimulatedCoordinator
from potluck.simulate.simulated_device import Device
from potluck.simulate.small_model import SmallModel, even
from potluck.simulate.world import Disk, Violation, World
from potluck.types import COORDINATOR, DEFAULT_SCHEDULE
from potluck.wire import messages

UNTIL_S = 3000.0


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
        self, seed: int, device: type[Device] = Device, disk: type[Disk] = Disk, faults: int = 4, rounds: int = 14,
        schedule: str = DEFAULT_SCHEDULE,
    ) -> None:  # fmt: skip
        self.world, self._kind = World(seed), device
        self.model = SmallModel()
        self.rounds = rounds
        self.expected: list[Numbers] = [{name: start_number(name) for name in self.model.sizes}]
        for number in range(rounds):
            before, late = self.expected[-1], schedule_named(schedule).staleness > 0
            self.expected.append({name: trained(value, number, late=late) for name, value in before.items()})
        dice = self.world.random
        count = dice.randint(2, 5)
        self.devices: dict[str, Device] = {f"d{i}": device(f"d{i}", self) for i in range(count)}
        self.disk = disk()
        self.outcome: RunOutcome | None = None
        self._faults = Faults(self, dice.randint(0, faults))
        self._connections = dict.fromkeys(self.devices, 1)
        self._started = False
        for known in self.devices.values():
            known.connection = 1
        plan = even(list(self.devices), dice.randint(1, count), schedule)
        self.coordinator = SimulatedCoordinator(self)
        self.coordinator.start(opened(plan, term=1, rounds=rounds, first=0, here=self.devices, blueprint=self.model))

    @property
    def up(self) -> bool:
        return self.coordinator.up

    @property
    def state(self) -> ClusterState:
        """Where the coordinator stands, or stood when it crashed."""
        return self.coordinator.state

    # --- the coordinator's process

    def crash(self, seconds: float) -> None:
        """The coordinator's machine loses power; it is back after some time."""
        self.world.say(f"the coordinator crashes for {seconds:.1f} s")
        self.coordinator.up = False
        self.disk.crash()
        for device in self.devices.values():
            if device.connection == self._connections.get(device.name):
                self.close(device.name)
        self.world.after(seconds, self._back)

    def _back(self) -> None:
        committed = len(self.disk.ledger)
        for device in self.devices.values():
            live = device.state.live
            alone = device.state.force is not None and device.state.force.own_commit
            if device.alive and live is not None and live.round > committed and not alone:
                raise Violation(f"{device.name} committed round {live.round - 1}, which the ledger has lost")
        self.coordinator = SimulatedCoordinator(self)
        self.coordinator.start(
            reopened(
                self.disk.plans, rounds=self.rounds, committed=committed, saved=self.disk.saved, here=(),
                blueprint=self.model,
            )
        )  # fmt: skip

    def adopted(self) -> None:
        """The first plan is in force: from now on, something may go wrong."""
        self._started = True

    def end(self, finished: bool, why: str) -> None:
        """The run is over."""
        if finished and (self.disk.ledger != list(range(self.rounds)) or self.disk.saved != self.rounds):
            raise Violation(f"finished with {self.disk.ledger} and a model of {self.disk.saved} rounds")
        self.outcome = RunOutcome(finished, why, self.state.term, self._faults.happened)
        self.world.over = True

    # --- lines between the coordinator and devices

    def send(self, device: str, message: messages.FromCoordinator) -> None:
        """The coordinator says something."""
        connection, target = self._connections.get(device), self.devices[device]

        def deliver() -> None:  # also what a coordinator said that is gone by now
            if target.connection == connection:
                target.tell(message)  # type: ignore[arg-type]

        self.world.carry(COORDINATOR, device, deliver)

    def to_coordinator(self, device: str, message: messages.FromAgent) -> None:
        """A device says something."""
        connection, target = self._connections.get(device), self.coordinator

        def deliver() -> None:
            if self._connections.get(device) == connection and target.up:
                target.hear(device, message)

        self.world.carry(device, COORDINATOR, deliver)

    def state_to_coordinator(self, device: str, round: int, numbers: Numbers) -> None:
        """A device's state, for the checkpoint."""
        target, term = self.coordinator, self.state.term

        def deliver() -> None:
            if target.up and term == target.state.term and target.state.phase == "training":
                target.take_state(device, round, numbers)

        self.world.carry(device, COORDINATOR, deliver, 0.05)

    def connect(self, device: str) -> bool:
        """A device looks for the coordinator; whether it found it."""
        if not self.up or not self.world.passes(device, COORDINATOR) or not self.world.passes(COORDINATOR, device):
            return False
        self._connections[device] = connection = self._connections.get(device, 0) + 1
        self.devices[device].connection = connection
        self.world.carry(
            device,
            COORDINATOR,
            lambda: self.coordinator.tell(Joined(device=device)) if self._connections[device] == connection else None,
        )
        self.coordinator.wish = device
        return True

    def close(self, device: str) -> None:
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
            self.close(device)
            self.coordinator.tell(Lost(device=device, why=why, silent=silent))

    def failpoint(self, who: str, order: object) -> None:
        """Between deciding and doing, anything may happen."""
        if self._started:
            self._faults.chance(who, type(order).__name__)

    def newcomer(self, name: str) -> None:
        """A device joins."""
        self.devices[name] = self._kind(name, self)
        self.connect(name)


def simulate_run(
    seed: int, device: type[Device] = Device, disk: type[Disk] = Disk, faults: int = 4, rounds: int = 14,
    schedule: str = DEFAULT_SCHEDULE,
) -> RunOutcome:  # fmt: skip
    """One run; a Violation if a promise is broken, or it neither ends nor stops."""
    run = SimulatedRun(seed, device, disk, faults, rounds, schedule)
    try:
        run.world.run(UNTIL_S)
        if run.outcome is None:
            raise Violation(f"nothing happens any more: {run.state.phase}, round {run.state.committed}")
    except Violation as error:
        story = "\n".join(run.world.history)
        raise Violation(f"seed {seed}: {error}\n{story}") from None
    return run.outcome
