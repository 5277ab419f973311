"""The what-if flags of `potluck simulate`: read before anything is measured, applied to a profile afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from potluck import units
from potluck.errors import InputError
from potluck.plan.validate import MAX_MICRO_BATCHES
from potluck.settings.values import read
from potluck.simulate.what_if import slowed, with_all_links, with_device, with_link, without_device
from potluck.types import DeviceProfile, DeviceSpec, Member, Plan, Profile, Stage

Sizes = tuple[tuple[int, int], ...]  # micro-batch sizes and counts to choose from
_Change = Callable[[Profile], Profile]


@dataclass(frozen=True)
class WhatIfs:
    """What would be different: devices and links in the order of the flags, and the batch size."""

    steps: tuple[tuple[str, _Change], ...] = ()  # the flag, and what it does to a profile
    batch_size: int | None = None

    def __bool__(self) -> bool:
        return bool(self.steps) or self.batch_size is not None

    def of_profile(self, profile: Profile) -> Profile:
        """The profile of the changed fleet."""
        for flag, change in self.steps:
            profile = _named(flag, change, profile)
        return profile

    def check_names(self, names: Iterable[str]) -> None:
        """Raises if a flag names a device that a fleet of these names does not have by then."""
        self.of_profile(
            Profile(program="", devices=tuple(DeviceProfile(device=DeviceSpec(name=n), blocks=()) for n in names))
        )

    def of_sizes(self, sizes: Sizes, micro_batch: int) -> Sizes:
        """Micro-batch sizes and counts of the changed batch size."""
        if self.batch_size is None:
            return sizes
        fitting = tuple((rows, self.batch_size // rows) for rows, _ in sizes if self.batch_size % rows == 0)
        if not fitting:
            raise InputError(
                f"--batch-size: {self.batch_size} cannot be cut into micro-batches of {micro_batch}; "
                f"give a multiple of {micro_batch}"
            )
        few = tuple((rows, count) for rows, count in fitting if count <= MAX_MICRO_BATCHES)
        if not few:
            raise _too_many(self.batch_size, max(rows for rows, _ in fitting))
        return few

    def of_plan(self, plan: Plan) -> Plan:
        """The same plan for the changed batch size: more or fewer micro-batches, and turns in proportion."""
        if self.batch_size is None:
            return plan
        rows = plan.micro_batch_size
        if self.batch_size % rows:
            raise InputError(
                f"--batch-size: {self.batch_size} cannot be cut into the plan's micro-batches of {rows}; "
                f"give a multiple of {rows}"
            )
        count = self.batch_size // rows
        if count > MAX_MICRO_BATCHES:
            raise _too_many(self.batch_size, rows)
        stages = tuple(_with_turns(stage, plan.micro_batches, count, self.batch_size) for stage in plan.stages)
        least = [len(stages) - place for place in range(len(stages))]
        depths = (
            None if s.depth is None else min(s.depth, max(2 * n - 1, count)) for s, n in zip(stages, least, strict=True)
        )
        kept = tuple(replace(stage, depth=depth) for stage, depth in zip(stages, depths, strict=True))
        return replace(plan, micro_batches=count, stages=kept)


def _too_many(batch_size: int, rows: int) -> InputError:
    most = MAX_MICRO_BATCHES * rows
    return InputError(
        f"--batch-size: {batch_size} makes more than {MAX_MICRO_BATCHES} micro-batches of {rows}; give at most {most}"
    )


def _with_turns(stage: Stage, before: int, count: int, batch_size: int) -> Stage:
    if stage.sharing != "turns":
        return stage
    if any(member.share * count % before for member in stage.group):
        shares = ", ".join(f"{member.device} {member.share}" for member in stage.group)
        raise InputError(
            f"--batch-size: {batch_size} makes {count} turns, which cannot be shared as the plan does "
            f"({shares} of {before}); give another one, or leave out --plan"
        )
    group = tuple(Member(device=m.device, share=m.share * count // before) for m in stage.group)
    return replace(stage, group=group)


def read_changes(asked: Mapping[str, Any]) -> WhatIfs:
    """The changes that the flags ask for: added, removed, slowed, links, in this order; and the batch size."""
    steps: list[tuple[str, _Change]] = []
    steps += [("--add", _added(given)) for given in asked["add"]]
    steps += [("--remove", _removed(given)) for given in asked["remove"]]
    steps += [("--slow", _slowed(given)) for given in asked["slow"]]
    steps += [("--link", _linked(given)) for given in asked["link"]]
    return WhatIfs(tuple(steps), asked["batch_size"])


def _named(flag: str, change: _Change, profile: Profile) -> Profile:
    try:
        return change(profile)
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(flag) else f"{flag}: {text.removeprefix('profile: ')}") from None


def _split(given: str, flag: str, example: str) -> tuple[str, str]:
    name, equals, value = given.rpartition("=")
    if not equals or not name or not value:
        raise InputError(f"{flag}: {given!r} does not say what; give it like {example}")
    return name.strip(), value.strip()


def _added(given: str) -> _Change:
    first, _, memory = given.partition(",")
    name, speed = _split(first, "--add", "pi=0.25 or pi=0.25,512MB")
    try:
        size = units.size_bytes(memory.strip()) if memory else 0
        device = DeviceSpec(name=name, speed=float(speed), memory_bytes=size)
    except InputError as error:
        raise InputError(f"--add: {error}") from None
    except ValueError:
        raise InputError(f"--add: {speed!r} is no speed; give a number above 0, like pi=0.25") from None
    return lambda profile: with_device(profile, device)


def _removed(name: str) -> _Change:
    return lambda profile: without_device(profile, name)


def _slowed(given: str) -> _Change:
    name, value = _split(given, "--slow", "nano1=2")
    try:
        factor = float(value)
    except ValueError:
        raise InputError(f"--slow: {value!r} is no number; give how many times as long, like 2") from None
    return lambda profile: slowed(profile, name, factor)


def _linked(given: str) -> _Change:
    ends, rate = _split(given, "--link", "desk,pi=10Mbit or all=10Mbit")
    bandwidth = read(units.rate_bytes_s, rate, "--link")
    if ends == "all":
        return lambda profile: with_all_links(profile, bandwidth)
    a, comma, b = (part.strip() for part in ends.partition(","))
    if not comma:
        raise InputError(f"--link: {given!r} names one end; give it like desk,pi=10Mbit, or all=10Mbit")
    return lambda profile: with_link(profile, a, b, bandwidth)
