"""Seeded planning problems: models and fleets that differ in every way a real one may."""

from __future__ import annotations

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
    ModelFacts,
    Profile,
    Timing,
)

ROWS = (2, 4, 8, 16)


def instance(seed: int, devices: int, blocks: int, *, memory: bool = True) -> tuple[ModelFacts, Profile]:
    """A model and a fleet: speeds 1, 2 and 4 ± 20 %, uneven links, memory that binds for some devices."""
    rng = np.random.default_rng(seed)
    facts = _model(rng, blocks)
    base = rng.uniform(0.004, 0.02, blocks)  # seconds of 8 rows forward on the slowest kind
    kept = [block.stash_bytes for block in facts.blocks]
    speeds = rng.choice([1.0, 2.0, 4.0], devices) * rng.uniform(0.8, 1.2, devices)
    whole = sum(b.weight_bytes * 3 + 8 * k * 4 for b, k in zip(facts.blocks, kept, strict=True))
    profiles = []
    for d in range(devices):
        limit = int(whole * rng.uniform(0.35, 1.2)) if memory else 0
        times = base * rng.uniform(0.85, 1.15, blocks) / speeds[d]
        overhead = rng.uniform(0.0002, 0.001)
        profiles.append(
            DeviceProfile(
                device=DeviceSpec(name=f"d{d}", memory_bytes=limit),
                blocks=tuple(_cells(float(times[i]), overhead, kept[i]) for i in range(blocks)),
                message_s=0.0003,
            )
        )
    return facts, Profile(program=facts.digest, devices=tuple(profiles), links=_links(rng, devices), commit_s=0.002)


def _model(rng: np.random.Generator, blocks: int) -> ModelFacts:
    shrink = np.exp(-np.linspace(0, 2, blocks))  # early blocks: large activations, small weights
    weights = (rng.uniform(0.3, 1.0, blocks) * 4e6 * (1.1 - shrink)).astype(int)
    sizes = (rng.uniform(0.3, 1.0, blocks) * 4e4 * (shrink + 0.1)).astype(int)
    return ModelFacts(
        digest="synthetic",
        blocks=tuple(
            Block(
                index=i, label=f"block {i}", parameters=(f"w{i}",), weight_bytes=int(weights[i]),
                trainable_bytes=int(weights[i]), buffer_bytes=0, stash_bytes=int(sizes[i]) * 4,
            )
            for i in range(blocks)
        ),
        crossings=tuple(
            Crossing(value=i, producer=i, consumers=(i + 1,), sample_bytes=int(sizes[i]), gradient=True)
            for i in range(blocks - 1)
        ),
        feeds=(
            Feed(name="x", consumers=(0,), sample_bytes=3000),
            Feed(name="y", consumers=(blocks - 1,), sample_bytes=8),
        ),
        optimizer_slots=1,
    )  # fmt: skip


def _cells(seconds: float, overhead: float, kept: int) -> BlockProfile:
    return BlockProfile(
        timings=tuple(
            Timing(
                rows=rows, forward_s=overhead + seconds * rows / 8, backward_s=overhead + 2 * seconds * rows / 8,
                kept_bytes=kept * rows, working_bytes=kept * rows // 2,
            )
            for rows in ROWS
        ),
        update_s=0.0005,
    )  # fmt: skip


def _links(rng: np.random.Generator, devices: int) -> tuple[LinkProfile, ...]:
    """From 50 Mbit/s to 1 Gbit/s, the same both ways."""
    names = [f"d{i}" for i in range(devices)]
    links = []
    for i, a in enumerate(names):
        for b in [*names[i + 1 :], COORDINATOR]:
            rate = float(10 ** rng.uniform(np.log10(6.25e6), np.log10(1.25e8)))
            links += [
                LinkProfile(source=x, target=y, bandwidth_bytes_s=rate, latency_s=0.0005) for x, y in ((a, b), (b, a))
            ]
    return tuple(links)
