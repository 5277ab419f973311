"""Profiles of devices one does not have, from one that was measured."""

from __future__ import annotations

import msgspec

from potluck.profile.cells import scaled
from potluck.types import COORDINATOR, DeviceProfile, DeviceSpec, Fleet, LinkProfile, Profile


def synthetic(measured: DeviceProfile, fleet: Fleet, program: str, commit_s: float = 0.0) -> Profile:
    """What the model would cost a fleet whose speeds are relative to the measured device at its own speed.

    Memory, links and medium are the fleet's. A speed above 1 is faster than the measured device was.
    """
    names = [COORDINATOR, *(d.name for d in fleet.devices)]
    links = tuple(
        LinkProfile(
            source=a,
            target=b,
            bandwidth_bytes_s=fleet.link(a, b).bandwidth_bytes_s,
            latency_s=fleet.link(a, b).latency_s,
            measured=False,
        )
        for a in names
        for b in names
        if a != b
    )
    return Profile(
        program=program,
        devices=tuple(_like(measured, device) for device in fleet.devices),
        links=links,
        medium=fleet.medium,
        commit_s=commit_s,
    )


def _like(measured: DeviceProfile, device: DeviceSpec) -> DeviceProfile:
    """The measured device at another speed; its cells are no measurements of this one."""
    factor = measured.device.speed / device.speed
    blocks = tuple(
        msgspec.structs.replace(
            block, timings=tuple(msgspec.structs.replace(cell, measured=False) for cell in block.timings)
        )
        for block in (scaled(block, factor) for block in measured.blocks)
    )
    return msgspec.structs.replace(
        measured,
        device=device,
        blocks=blocks,
        message_s=measured.message_s * factor,
        copy_bytes_s=None if measured.copy_bytes_s is None else measured.copy_bytes_s / factor,
        call_s=measured.call_s * factor,
        host="",
    )
