"""A profile as devices come and go."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from potluck.types import COORDINATOR, DeviceProfile, LinkProfile, Profile


def of_devices(profile: Profile, names: Collection[str]) -> Profile:
    here = {*names, COORDINATOR}
    return replace(
        profile,
        devices=tuple(d for d in profile.devices if d.device.name in here),
        links=tuple(link for link in profile.links if link.source in here and link.target in here),
    )


def with_newcomer(profile: Profile, new: DeviceProfile) -> Profile:
    """The profile and one device more, whose links nobody has measured: each is taken to be the usual one."""
    name = new.device.name
    known = [d.device.name for d in profile.devices if d.device.name != name]
    links = {(link.source, link.target): link for link in profile.links if name not in (link.source, link.target)}
    for other in (COORDINATOR, *known):
        for source, target in ((other, name), (name, other)):
            alike = [x for x in links.values() if (x.source == source or x.target == target) and x.bandwidth_bytes_s]
            usual = sorted(alike or links.values(), key=lambda x: x.bandwidth_bytes_s or 0.0)
            if usual:
                like = usual[len(usual) // 2]
                links[source, target] = replace(like, source=source, target=target, measured=False)
            else:
                links[source, target] = LinkProfile(source=source, target=target, measured=False)
    others = tuple(d for d in profile.devices if d.device.name != name)
    return replace(profile, devices=(*others, new), links=tuple(links.values()))


def limited(device: DeviceProfile, most_bytes: int | None) -> DeviceProfile:
    """The device with no more memory than that; None: with what it says it has."""
    spec = device.device
    if most_bytes is None or 0 < spec.memory_bytes <= most_bytes:
        return device
    return replace(device, device=replace(spec, memory_bytes=most_bytes))
