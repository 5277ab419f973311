"""Where the time goes."""

from __future__ import annotations

import time

from potluck.device.host.stop_watch import StopWatch


def test_every_moment_belongs_to_one_kind() -> None:
    began = time.perf_counter()
    watch = StopWatch()
    for kind in ("forward", "backward", "forward"):
        deadline = time.perf_counter() + 0.002
        while time.perf_counter() < deadline:
            pass
        watch.lap(kind)
    spent = watch.take()
    assert set(spent) == {"forward", "backward"}
    assert spent["forward"] >= 0.004
    assert spent["backward"] >= 0.002
    assert sum(spent.values()) <= time.perf_counter() - began
    assert watch.take() == {}
