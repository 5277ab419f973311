"""Small models and fleets as values, for tests that need no torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from potluck.types import Block, Crossing, DeviceSpec, Feed, Fleet, Member, ModelFacts, Plan, Stage


def facts(
    n_blocks: int,
    *,
    coupled: Collection[int] = (),
    exclusive: Collection[int] = (),
    frozen: Collection[int] = (),
    weight_bytes: int | Sequence[int] = 1000,
    stash_bytes: int | Sequence[int] = 1000,
    buffer_bytes: int = 0,
    sample_bytes: int = 10,
    tied: tuple[tuple[str, tuple[int, ...]], ...] = (),
    optimizer_slots: int = 1,
) -> ModelFacts:
    """A chain of blocks, each with one weight; the input goes to the first, the label to the last."""
    weights = [weight_bytes] * n_blocks if isinstance(weight_bytes, int) else weight_bytes
    stashes = [stash_bytes] * n_blocks if isinstance(stash_bytes, int) else stash_bytes
    blocks = tuple(
        Block(
            index=i,
            label=f"layers.{i}",
            parameters=(f"layers.{i}.weight",),
            weight_bytes=weights[i],
            trainable_bytes=0 if i in frozen else weights[i],
            buffer_bytes=buffer_bytes,
            stash_bytes=stashes[i],
            coupled=i in coupled,
            exclusive=i in exclusive,
        )
        for i in range(n_blocks)
    )
    crossings = tuple(
        Crossing(value=i, producer=i, consumers=(i + 1,), sample_bytes=sample_bytes, gradient=True)
        for i in range(n_blocks - 1)
    )
    feeds = (
        Feed(name="x", consumers=(0,), sample_bytes=sample_bytes),
        Feed(name="y", consumers=(n_blocks - 1,), sample_bytes=1),
    )
    return ModelFacts(
        digest="0" * 64, blocks=blocks, crossings=crossings, feeds=feeds, tied=tied, optimizer_slots=optimizer_slots
    )


def fleet(*names: str, **memory_bytes: int) -> Fleet:
    """Devices without a memory limit, then those with one, by keyword."""
    unlimited = [DeviceSpec(name=name) for name in names]
    limited = [DeviceSpec(name=name, memory_bytes=size) for name, size in memory_bytes.items()]
    return Fleet(devices=(*unlimited, *limited))


def chain(n_stages: int, *, micro_batches: int = 8, depths: Sequence[int | None] = ()) -> Plan:
    """A plan of one block and one device (d0, d1, …) per stage."""
    depths = depths or [None] * n_stages
    stages = tuple(
        Stage(blocks=(i, i + 1), group=(Member(device=f"d{i}", share=micro_batches),), depth=depths[i])
        for i in range(n_stages)
    )
    return Plan(micro_batch_size=4, micro_batches=micro_batches, stages=stages)
