"""What if a device were added, gone or slower, or a link another? Each answer is a new profile."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from potluck.errors import InputError
from potluck.profile.cells import scaled
from potluck.types import COORDINATOR, DeviceProfile, DeviceSpec, LinkProfile, Profile

_MOST = 1e6  # times as fast or slow: beyond, times are no longer numbers


def with_device(profile: Profile, spec: DeviceSpec, like: str | None = None) -> Profile:
    """One device more, which does everything like another one (the first) at its own speed, with that one's links.

    Its speed is relative to the same measurement as the other's.
    """
    if any(d.device.name == spec.name for d in profile.devices):
        raise InputError(f"--add: {spec.name!r} is already in the fleet; give it another name")
    if not 1 / _MOST <= spec.speed <= _MOST:
        raise InputError(f"--add: speed {spec.speed:g}; give a number from {1 / _MOST:g} to {_MOST:,.0f}, like 0.25")
    model = profile.device(like) if like is not None else profile.devices[0]
    new = replace(_scaled(model, model.device.speed / spec.speed), device=spec)
    near = model.device.name
    links = [link for link in profile.links if near in (link.source, link.target)]
    copies = [
        replace(link, source=_renamed(link.source, near, spec.name), target=_renamed(link.target, near, spec.name))
        for link in links
    ]
    if links:
        between = _in_one_room(links)
        copies += [replace(between, source=spec.name, target=near), replace(between, source=near, target=spec.name)]
    return replace(profile, devices=(*profile.devices, new), links=(*profile.links, *copies))


def without_device(profile: Profile, name: str) -> Profile:
    profile.device(name)  # which names those there are
    if len(profile.devices) == 1:
        raise InputError(f"--remove: {name!r} is the only device; leave one")
    return replace(
        profile,
        devices=tuple(d for d in profile.devices if d.device.name != name),
        links=tuple(link for link in profile.links if name not in (link.source, link.target)),
    )


def slowed(profile: Profile, name: str, factor: float) -> Profile:
    """One device that takes `factor` times as long for everything it computes; below 1 it is faster."""
    if not 1 / _MOST <= factor <= _MOST:
        raise InputError(f"--slow: {factor:g} times as slow; give a number from {1 / _MOST:g} to {_MOST:,.0f}, like 2")
    profile.device(name)
    devices = tuple(_scaled(d, factor) if d.device.name == name else d for d in profile.devices)
    return replace(profile, devices=devices)


def with_link(
    profile: Profile, a: str, b: str, bandwidth_bytes_s: float | None = None, latency_s: float | None = None
) -> Profile:
    """The link between two devices, or one and the coordinator, in both directions changed; None leaves a figure.

    With a bandwidth of its own it no longer shares a line with others.
    """
    for name in (a, b):
        if name != COORDINATOR:
            profile.device(name)
    if a == b:
        raise InputError(f"--link: {a} – {b} leads from a device to itself; name two devices")
    known = {(link.source, link.target): link for link in profile.links}
    for pair in ((a, b), (b, a)):
        old = known.get(pair) or LinkProfile(source=pair[0], target=pair[1])
        known[pair] = replace(
            old,
            bandwidth_bytes_s=old.bandwidth_bytes_s if bandwidth_bytes_s is None else bandwidth_bytes_s,
            latency_s=old.latency_s if latency_s is None else latency_s,
            measured=False,
            trunk=old.trunk if bandwidth_bytes_s is None else "",
        )
    return replace(profile, links=tuple(known.values()))


def with_all_links(profile: Profile, bandwidth_bytes_s: float) -> Profile:
    """Every link with this bandwidth, and none on a line that it shares with others."""
    names = [COORDINATOR, *(d.device.name for d in profile.devices)]
    known = {(link.source, link.target): link for link in profile.links}
    changed = (
        replace(
            known.get((a, b)) or LinkProfile(source=a, target=b),
            bandwidth_bytes_s=bandwidth_bytes_s, measured=False, trunk="",
        )
        for a in names for b in names if a != b
    )  # fmt: skip
    return replace(profile, links=tuple(changed))


def _in_one_room(links: Sequence[LinkProfile]) -> LinkProfile:
    """What lies between a device and one that stands beside it, from the device's links, of which there is one.

    The fastest to another device: slower ones may be slow for the other's sake. A line that links share leads to
    another room, so one without is preferred, and none is shared between the two.
    """

    def likeness(link: LinkProfile) -> tuple[bool, bool, float]:
        rate = math.inf if link.bandwidth_bytes_s is None else link.bandwidth_bytes_s
        return not link.trunk, COORDINATOR not in (link.source, link.target), rate

    return replace(max(links, key=likeness), trunk="")


def _renamed(name: str, old: str, new: str) -> str:
    return new if name == old else name


def _scaled(device: DeviceProfile, factor: float) -> DeviceProfile:
    """A device that takes `factor` times as long; what a link does to it stays."""
    blocks = [scaled(block, factor) for block in device.blocks]
    unmeasured = (replace(b, timings=tuple(replace(t, measured=False) for t in b.timings)) for b in blocks)
    return replace(
        device,
        device=replace(device.device, speed=device.device.speed / factor),
        blocks=tuple(unmeasured),
        message_s=device.message_s * factor,
        copy_bytes_s=None if device.copy_bytes_s is None else device.copy_bytes_s / factor,
        call_s=device.call_s * factor,
    )
