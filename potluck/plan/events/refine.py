"""What training took, put to use: blocks were measured one by one, a round has everybody at work."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from potluck.metrics.lanes import busy_s
from potluck.plan.cost.memory import fits
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.groups import proportional_shares
from potluck.profile.cells import scaled
from potluck.types import DeviceProfile, ModelFacts, Plan, Profile, Stage

Spent = Mapping[str, Mapping[str, float]]  # device → kind of action → seconds of a round

_LEAST, _MOST = 0.25, 4.0  # one round that somebody else disturbed must not make a device useless
_PROFILE_COUNTS = 1.0  # as many times as a plan that was tried
_ALIKE = 0.02  # a smaller difference is noise


def corrected(profile: Profile, facts: ModelFacts, tried: Sequence[tuple[Plan, Spent]]) -> Profile:
    """A profile with devices as fast as they were when plans were tried: for each, its seconds of a round by action.

    What the devices of a plan have in common counts at once, and for everybody. What sets one apart counts more the
    more often it was seen: a few rounds say less than the profile did.
    """
    common: list[float] = []  # logarithms of how many times as long it took
    apart: dict[str, list[float]] = {}
    for plan, spent_s in tried:
        paces = {device: math.log(pace) for device, pace in _paces(profile, plan, facts, spent_s).items()}
        if paces:
            common.append(statistics.fmean(paces.values()))
            for device, pace in paces.items():
                apart.setdefault(device, []).append(pace - common[-1])
    if not common:
        return profile
    usual = statistics.fmean(common)
    names = [d.device.name for d in profile.devices]
    own = {name: sum(apart.get(name, ())) / (len(apart.get(name, ())) + _PROFILE_COUNTS) for name in names}
    return at_pace(profile, {name: math.exp(usual + own[name]) for name in names})


def _paces(profile: Profile, plan: Plan, facts: ModelFacts, spent_s: Spent) -> dict[str, float]:
    """Device → how many times as long as predicted it computed."""
    predicted_s = simulate(plan, facts, profile).busy_s
    found = {}
    for device, took in spent_s.items():
        measured_s = busy_s(took)
        if predicted_s.get(device, 0.0) > 0 and measured_s > 0:
            found[device] = min(_MOST, max(_LEAST, measured_s / predicted_s[device]))
    return found


def at_pace(profile: Profile, factors: Mapping[str, float]) -> Profile:
    """The profile with devices that take so many times as long."""
    return replace(profile, devices=tuple(_at_pace(d, factors.get(d.device.name, 1.0)) for d in profile.devices))


def _at_pace(device: DeviceProfile, factor: float) -> DeviceProfile:
    if abs(factor - 1) < _ALIKE:
        return device
    return replace(
        device, blocks=tuple(scaled(block, factor) for block in device.blocks), call_s=device.call_s * factor
    )


def levelled(plan: Plan, facts: ModelFacts, tables: Tables, spent_s: Spent) -> Plan:
    """The plan with shares of samples as fast as each member was; the same plan where that would not fit in memory."""
    stages = tuple(_level(stage, plan.micro_batch_size, spent_s) for stage in plan.stages)
    changed = replace(plan, stages=stages)
    return changed if fits(changed, facts, tables) else plan


def _level(stage: Stage, rows: int, spent_s: Spent) -> Stage:
    took = [busy_s(spent_s.get(member.device, {})) for member in stage.group]
    if len(stage.group) == 1 or stage.sharing != "samples" or not all(took):
        return stage
    paces = [member.share / seconds for member, seconds in zip(stage.group, took, strict=True)]
    shares = proportional_shares(paces, rows, 2)
    group = tuple(replace(member, share=share) for member, share in zip(stage.group, shares, strict=True))
    return replace(stage, group=group)
