"""A plan under virtual time: what a round takes, who is busy, what everybody needs in memory."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.metrics.lanes import Span, utilisation
from potluck.plan.cost.memory import MemoryUse, peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.schedule.holders import stage_of
from potluck.types import ModelFacts, Plan, Profile

ROUNDS = 3  # simulated; the last one counts, as the first has to wait for its samples


@dataclass(frozen=True)
class DeviceRun:
    """One device in a round of the steady state."""

    name: str
    stage: int
    busy_s: float  # of compute
    waiting_s: float
    memory: MemoryUse
    limit_bytes: int  # 0: not limited

    @property
    def missing_bytes(self) -> int:
        return max(0, self.memory.total - self.limit_bytes) if self.limit_bytes else 0


@dataclass(frozen=True)
class Outlook:
    """What running a plan would come to."""

    plan: Plan
    round_s: float
    devices: tuple[DeviceRun, ...]  # of the plan, stage by stage
    idle: tuple[str, ...]  # devices of the profile that the plan does not use
    spans: tuple[Span, ...]  # of all rounds that were simulated
    ends_s: tuple[float, ...]  # when each of them was committed

    @property
    def samples_per_s(self) -> float:
        return self.plan.batch_size / self.round_s if self.round_s else float("inf")

    @property
    def utilisation(self) -> float:
        """The part of a round that the devices of the plan compute, in the mean."""
        return utilisation([d.busy_s for d in self.devices], self.round_s)

    @property
    def fits(self) -> bool:
        return not any(d.missing_bytes for d in self.devices)


def run(
    plan: Plan,
    facts: ModelFacts,
    profile: Profile,
    *,
    rounds: int = ROUNDS,
    snapshot: bool = False,
    tables: Tables | None = None,
) -> Outlook:
    """Runs some rounds of a plan in virtual time. With `snapshot`, devices also keep snapshots."""
    tables = tables or Tables(profile)
    found = simulate(plan, facts, profile, rounds, tables)
    uses = peak_bytes(plan, facts, snapshot=snapshot, tables=tables)
    devices = tuple(
        DeviceRun(
            name=name,
            stage=stage_of(plan, name),
            busy_s=found.busy_s[name],
            waiting_s=max(0.0, found.round_s - found.busy_s[name]),
            memory=uses[name],
            limit_bytes=profile.device(name).device.memory_bytes,
        )
        for name in plan.devices
    )
    idle = tuple(d.device.name for d in profile.devices if d.device.name not in plan.devices)
    return Outlook(plan, found.round_s, devices, idle, tuple(found.spans), tuple(found.ends_s))
