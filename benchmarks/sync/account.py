"""How much devices trained, by what they pushed.

What a device has not pushed yet when a run is stopped is not known, so its time ends with its last push; but who
stopped pushing, or never did, is held to the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from potluck.metrics.records import PushRecord

_STOPPED = 2.0  # times its longest time between two pushes


def ends_s(pushes: Sequence[PushRecord], devices: Sequence[str]) -> dict[str, float]:
    """Until when each device's work is accounted for."""
    end_s = max((push.at_s for push in pushes), default=0.0)
    found = {}
    for device in devices:
        times = [0.0, *(push.at_s for push in pushes if push.device == device)]
        longest_s = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
        found[device] = times[-1] if end_s - times[-1] <= _STOPPED * longest_s else end_s
    return found


def busy(pushes: Sequence[PushRecord], cores: Mapping[str, float]) -> float:
    """CPU seconds of training, of those that all devices had."""
    ends = ends_s(pushes, tuple(cores))
    could = sum(cores[device] * end_s for device, end_s in ends.items())
    return sum(push.cpu_s for push in pushes) / could if could else 0.0


def samples_per_s(pushes: Sequence[PushRecord], devices: Sequence[str]) -> float:
    """Of all devices together."""
    trained = {device: sum(push.samples for push in pushes if push.device == device) for device in devices}
    return sum(trained[device] / end_s for device, end_s in ends_s(pushes, devices).items() if end_s)
