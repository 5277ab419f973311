"""A profile corrected by what training took: blocks were measured one by one, a round has everybody at work."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from potluck.plan.events import COMPUTES, simulate
from potluck.profile.cells import scaled
from potluck.types import DeviceProfile, ModelFacts, Plan, Profile

_LEAST, _MOST = 0.25, 4.0  # one round that somebody else disturbed must not make a device useless
_ALIKE = 0.02  # a smaller difference is noise


def refined(profile: Profile, plan: Plan, facts: ModelFacts, spent_s: Mapping[str, Mapping[str, float]]) -> Profile:
    """The profile with every device of the plan as fast as it was: `spent_s` has its seconds of a round by action."""
    predicted_s = simulate(plan, facts, profile).busy_s
    factors = {}
    for device, took in spent_s.items():
        measured_s = sum(took.get(kind, 0.0) for kind in COMPUTES)
        if predicted_s.get(device, 0.0) > 0 and measured_s > 0:
            factors[device] = min(_MOST, max(_LEAST, measured_s / predicted_s[device]))
    return replace(profile, devices=tuple(_at_pace(d, factors.get(d.device.name, 1.0)) for d in profile.devices))


def _at_pace(device: DeviceProfile, factor: float) -> DeviceProfile:
    if abs(factor - 1) < _ALIKE:
        return device
    return replace(
        device, blocks=tuple(scaled(block, factor) for block in device.blocks), call_s=device.call_s * factor
    )
