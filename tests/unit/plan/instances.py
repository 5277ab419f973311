"""Random small models and profiles as values, for planners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potluck.types import (
    COORDINATOR,
    Block,
    BlockProfile,
    Crossing,
    DeviceProfile,
    DeviceSpec,
    Feed,
    LinkProfile,
    Medium,
    ModelFacts,
    Profile,
    Timing,
)

ROWS = (1, 2, 4, 8, 16)


def a_model(
    seed: int, blocks: int, *, coupled: Sequence[int] = (), exclusive: Sequence[int] = (), weight: float = 2e6
) -> ModelFacts:
    """A chain of blocks of random size."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(int(weight / 20), int(2 * weight), blocks)
    sizes = rng.integers(1_000, 60_000, blocks)
    return ModelFacts(
        digest="0" * 64,
        blocks=tuple(
            Block(
                index=i, label=f"layers.{i}", parameters=(f"layers.{i}.weight",), weight_bytes=int(weights[i]),
                trainable_bytes=int(weights[i]), buffer_bytes=0, stash_bytes=20_000, coupled=i in coupled,
                exclusive=i in exclusive,
            )
            for i in range(blocks)
        ),
        crossings=tuple(
            Crossing(value=i, producer=i, consumers=(i + 1,), sample_bytes=int(sizes[i]), gradient=True)
            for i in range(blocks - 1)
        ),
        feeds=(
            Feed(name="x", consumers=(0,), sample_bytes=3_000),
            Feed(name="label", consumers=(blocks - 1,), sample_bytes=8),
        ),
        optimizer_slots=1,
    )  # fmt: skip


def a_profile(
    seed: int,
    facts: ModelFacts,
    speeds: Sequence[float],
    *,
    bandwidth: float | None = 1e7,
    spread: float = 0.0,
    memory: Sequence[int] = (),
    medium: Medium = "full",
    latency_s: float = 0.0,
) -> Profile:
    """Devices of these speeds; `spread` makes links, and blocks of one device, differ."""
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.001, 0.01, len(facts.blocks))
    devices = []
    for d, speed in enumerate(speeds):
        own = base / speed * rng.uniform(1 - spread / 2, 1 + spread / 2, len(base))
        spec = DeviceSpec(name=f"d{d}", memory_bytes=memory[d] if memory else 0)
        devices.append(DeviceProfile(device=spec, blocks=tuple(_block(float(s)) for s in own)))
    names = [COORDINATOR, *(d.device.name for d in devices)]
    rates = {frozenset((a, b)): rng.uniform(1 - spread, 1 + spread) for a in names for b in names if a != b}
    links = tuple(
        LinkProfile(
            source=a, target=b, latency_s=latency_s,
            bandwidth_bytes_s=None if bandwidth is None else bandwidth * rates[frozenset((a, b))],
        )
        for a in names for b in names if a != b
    )  # fmt: skip
    return Profile(program=facts.digest, devices=tuple(devices), links=links, medium=medium)


def _block(seconds: float) -> BlockProfile:
    """Fixed costs beside those that grow with the rows; a backward is two forwards."""
    cells = [
        Timing(
            rows=r, forward_s=seconds * (0.2 + r / 8), backward_s=2 * seconds * (0.2 + r / 8), kept_bytes=20_000 * r,
            working_bytes=5_000 * r,
        )
        for r in ROWS
    ]  # fmt: skip
    return BlockProfile(timings=tuple(cells), update_s=seconds / 10)
