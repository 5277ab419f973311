"""What a message costs the thread that computes: packing, sending, receiving and unpacking it."""

from __future__ import annotations

import time

import torch

from potluck.device.host.cpu_pace import CpuPace
from potluck.device.measure.bench import OTHER_FLOATS
from potluck.errors import LinkError
from potluck.profile.cells import middle_mean
from potluck.settings.address import HERE
from potluck.tensors.parcels import pack, unpack
from potluck.wire.carriers import open_link
from potluck.wire.link import Link, Tag
from potluck.wire.trust import Trust

_MESSAGES = 16  # of each size: the middle mean of so many is steady
_SMALL, _LARGE = 256, 256 * 1024  # floats
_TIMEOUT_S = 10.0  # for one message to oneself: only a machine that stands still takes as long
_NOISE_S = 1e-6  # no processor copies a megabyte in less
_LOOKS = 2  # of which the second has as much time again, and is taken only where the first saw nothing but noise


def message_cost(
    carrier: str, device: torch.device, pace: CpuPace, budget_s: float, trust: Trust
) -> tuple[float, float | None]:
    """Seconds for one message sent or received, and bytes per second on top; between two links of this process.

    Where noise hides what bytes cost, it is measured once more: a profile is kept, and None says that they are free.
    """
    here, there = (open_link(carrier, name, HERE, trust) for name in ("here", "there"))
    try:
        here.adopt(1, {"there": there.address})
        there.adopt(1, {"here": here.address})
        for look in range(_LOOKS):
            deadline = time.monotonic() + budget_s
            small = _seconds(here, there, device, pace, _SMALL, deadline, look)
            large = _seconds(here, there, device, pace, _LARGE, deadline, look)
            if (copy_bytes_s := bytes_per_second(small, large)) is not None:
                break
    except LinkError:
        return 0.0, None  # this carrier does not talk to itself: messages count as free
    finally:
        here.close()
        there.close()
    return small, copy_bytes_s


def bytes_per_second(small_s: float, large_s: float) -> float | None:
    """What the size of a message costs, from a small one and a large one; None where noise is larger than that."""
    more_s = large_s - small_s
    return 4 * (_LARGE - _SMALL) / more_s if more_s > _NOISE_S else None


def _seconds(
    here: Link, there: Link, device: torch.device, pace: CpuPace, floats: int, deadline: float, look: int
) -> float:
    """Of one message by itself, as in a pipeline; the mean of sending and receiving it."""
    tensor, between = torch.zeros(floats, device=device), torch.zeros(OTHER_FLOATS)
    costs = []
    for number in range(_MESSAGES):
        between.add_(1.0)
        thread_s, process_s = time.thread_time(), time.process_time()
        here.send("there", Tag("cost", number, look, floats), pack([tensor]), _TIMEOUT_S)
        unpack(there.receive("here", Tag("cost", number, look, floats), _TIMEOUT_S), device)
        spent = (time.thread_time() - thread_s, time.process_time() - process_s)
        if number > 0:  # the first warms up
            costs.append(pace.message_s(*spent) / 2)
        if time.monotonic() > deadline and costs:
            break
    return middle_mean(costs)
