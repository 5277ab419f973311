"""Planning problems with everything a real one may have, all at once: skips, frozen fronts, tied weights, tight memory,
latency, half-duplex media, blocks that take no time. What regular instances never show, these do."""

from __future__ import annotations

import random
from dataclasses import dataclass

from msgspec.structs import replace

from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
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
    Plan,
    Profile,
    Timing,
)


@dataclass(frozen=True)
class Odd:
    """One problem."""

    facts: ModelFacts
    profile: Profile
    rows: int
    micro_batches: int

    def fits(self, plan: Plan) -> bool:
        """Whether every device has the memory for a plan."""
        limits = {d.device.name: d.device.memory_bytes for d in self.profile.devices}
        uses = peak_bytes(plan, self.facts, tables=Tables(self.profile))
        return all(not limits[name] or use.total <= limits[name] for name, use in uses.items())


def odd_instance(seed: int) -> Odd:
    """The problem of a seed."""
    r = random.Random(seed)  # noqa: S311 - no secret
    blocks = r.choice([1, 1, 2, 3, 4, 6, 8, 12, 20])
    devices = r.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 12])
    rows, micro_batches = r.choice([1, 2, 3, 4, 5, 8]), r.choice([1, 1, 2, 3, 4, 8, 16])
    facts = _model(r, blocks)
    base = [10 ** r.uniform(-4, -2) if r.random() > 0.1 else r.choice([0.0, 1e-7]) for _ in range(blocks)]
    unlike = r.choice([1, 3, 10, 1000])
    memory = r.choice(["none", "none", "loose", "tight"])
    whole = sum(b.weight_bytes * (2 + facts.optimizer_slots) + b.stash_bytes * rows * 2 for b in facts.blocks)
    profiles = tuple(_device(r, f"d{d}", facts, base, unlike, memory, whole) for d in range(devices))
    return Odd(facts, _profile(r, profiles), rows, micro_batches)


def faster(profile: Profile, place: int, factor: float) -> Profile:
    """One device faster by a factor."""

    def quick(block: BlockProfile) -> BlockProfile:
        timings = tuple(
            replace(t, forward_s=t.forward_s / factor, backward_s=t.backward_s / factor) for t in block.timings
        )
        return replace(block, update_s=block.update_s / factor, timings=timings)

    devices = list(profile.devices)
    old = devices[place]
    devices[place] = replace(old, blocks=tuple(quick(b) for b in old.blocks), call_s=old.call_s / factor)
    return replace(profile, devices=tuple(devices))


def _size(r: random.Random, most: float) -> int:
    if r.random() < 0.2:
        return r.choice([0, 0, 1, int(10 ** r.uniform(0, most))])
    return int(10 ** r.uniform(2, most))


def _model(r: random.Random, count: int) -> ModelFacts:
    coupled, exclusive = r.random() < 0.25, r.random() < 0.15
    blocks = []
    for i in range(count):
        weight = _size(r, 7.5)
        blocks.append(
            Block(
                index=i, label=f"l{i}", parameters=(f"l{i}.w",), weight_bytes=weight,
                trainable_bytes=weight if r.random() < 0.85 else r.choice([0, weight // 2]),
                buffer_bytes=r.choice([0, 0, 100, int(1e5)]), stash_bytes=_size(r, 6),
                coupled=coupled and r.random() < 0.3, exclusive=exclusive and r.random() < 0.2,
            )
        )  # fmt: skip
    crossings = []
    for i in range(count - 1):
        users = [i + 1]
        if r.random() < 0.2:
            users += [c for c in range(i + 2, count) if r.random() < 0.3]
        size = _size(r, 5.5)
        gradient = r.random() < 0.9
        crossings.append(Crossing(value=i, producer=i, consumers=tuple(users), sample_bytes=size, gradient=gradient))
    feeds = (
        Feed(name="x", consumers=(0,), sample_bytes=_size(r, 4.5)),
        Feed(name="y", consumers=(count - 1,), sample_bytes=8),
    )
    tied = (("l0.w", (0, count - 1)),) if count > 1 and r.random() < 0.2 else ()
    return ModelFacts(
        digest="0" * 64, blocks=tuple(blocks), crossings=tuple(crossings), feeds=feeds, tied=tied,
        optimizer_slots=r.choice([0, 1, 2]),
    )  # fmt: skip


def _device(
    r: random.Random, name: str, facts: ModelFacts, base: list[float], unlike: int, memory: str, whole: int
) -> DeviceProfile:
    speed, limit = r.uniform(1 / unlike, 1), 0
    if memory != "none":
        limit = int(whole * (r.uniform(0.5, 3) if memory == "loose" else r.uniform(0.1, 1.0))) + 1000
    measured = sorted(r.sample([1, 2, 4, 8, 16], r.choice([1, 2, 3, 5])))
    blocks = []
    for block, usual_s in zip(facts.blocks, base, strict=True):
        s = usual_s / speed * r.uniform(0.8, 1.2)
        timings = tuple(
            Timing(
                rows=q, forward_s=s * (0.2 + q / 8), backward_s=2 * s * (0.2 + q / 8),
                kept_bytes=block.stash_bytes * q, working_bytes=block.stash_bytes * q // 4,
            )
            for q in measured
        )  # fmt: skip
        blocks.append(BlockProfile(timings=timings, update_s=s / 10, resident=r.choice([1.0, 1.0, 1.2])))
    return DeviceProfile(
        device=DeviceSpec(name=name, memory_bytes=limit), blocks=tuple(blocks), message_s=r.choice([0, 0, 1e-4]),
        copy_bytes_s=r.choice([None, None, 1e9]), call_s=r.choice([0, 0, 1e-4]),
    )  # fmt: skip


def _profile(r: random.Random, devices: tuple[DeviceProfile, ...]) -> Profile:
    names = [COORDINATOR, *(d.device.name for d in devices)]
    rate, latency_s, spread = r.choice([None, 1e9, 1e7, 1e6]), r.choice([0, 0, 5e-4, 2e-2]), r.choice([0, 0.5, 0.95])
    links: list[LinkProfile] = []
    if r.random() < 0.95:
        links = [
            LinkProfile(
                source=a, target=b, latency_s=latency_s,
                bandwidth_bytes_s=None if rate is None else rate * r.uniform(1 - spread, 1 + spread),
            )
            for a in names for b in names if a != b
        ]  # fmt: skip
    medium = r.choice(["full", "full", "half", "shared"])
    commit_s = r.choice([0, 1e-3])
    return Profile(program="0" * 64, devices=devices, links=tuple(links), medium=medium, commit_s=commit_s)  # type: ignore[arg-type]
