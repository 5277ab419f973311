"""Sequences of groups: all of them, those next to one, and where a search begins."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product

from potluck.plan.search.cut_search import Guide

Groups = tuple[tuple[str, ...], ...]


def all_sequences(devices: Sequence[str]) -> Iterator[Groups]:
    """Every way to put some of the devices into groups, in every order of the groups."""
    for count in range(1, len(devices) + 1):
        for chosen in combinations(devices, count):
            for partition in _partitions(list(chosen)):
                for order in permutations(partition):
                    yield tuple(order)


def _partitions(items: list[str]) -> Iterator[list[tuple[str, ...]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in _partitions(rest):
        yield [(first,), *partition]
        for i, group in enumerate(partition):
            yield [*partition[:i], (first, *group), *partition[i + 1 :]]


def neighbours(groups: Groups, devices: Sequence[str], seed: int) -> list[Groups]:
    """Everything one move away: a device moves, two swap, one takes the place of another, neighbouring groups swap,
    merge or split. In random order."""
    found: set[Groups] = set()
    used = {d for g in groups for d in g}
    rank = {d: place for place, d in enumerate(devices)}
    for device in devices:
        rest = without(groups, device) if device in used else groups
        if device in used and rest:
            found.add(rest)
        for i in range(len(rest) + 1):
            found.add((*rest[:i], (device,), *rest[i:]))
            if i < len(rest):
                found.add((*rest[:i], _ordered((*rest[i], device), rank), *rest[i + 1 :]))
    for i, j in combinations(range(len(groups)), 2):
        for a in groups[i]:
            for b in groups[j]:
                found.add(_swapped(groups, (i, j), (a, b), rank))
    for i, group in enumerate(groups):
        for leaves, comes in product(group, [d for d in devices if d not in used]):
            kept = tuple(comes if d == leaves else d for d in group)
            found.add((*groups[:i], _ordered(kept, rank), *groups[i + 1 :]))
    for i in range(len(groups) - 1):
        found.add((*groups[:i], groups[i + 1], groups[i], *groups[i + 2 :]))
        found.add((*groups[:i], _ordered(groups[i] + groups[i + 1], rank), *groups[i + 2 :]))
    for i, group in enumerate(groups):
        for cut in range(1, len(group)):
            found.add((*groups[:i], group[:cut], group[cut:], *groups[i + 1 :]))
    found.discard(groups)
    listed = sorted(found)
    random.Random(seed + len(listed)).shuffle(listed)  # noqa: S311 - no secret
    return listed


def shuffled(groups: Groups, devices: Sequence[str], seed: int) -> Groups:
    """Three random moves away."""
    choose = random.Random(seed)  # noqa: S311 - no secret
    for _ in range(3):
        groups = choose.choice(neighbours(groups, devices, seed))
    return groups


def starts(guide: Guide) -> list[Groups]:
    """Where to begin: single devices, everybody together, and runs of equal strength along several orders."""
    tables = guide.cost.tables
    speed = {d: max(t.step_s((0, guide.blocks), guide.cost.rows), 1e-12) for d, t in tables.devices.items()}
    memory = {d: tables.devices[d].memory_bytes or 1 << 62 for d in tables.devices}
    by_speed = sorted(tables.devices, key=lambda d: speed[d])
    by_memory = sorted(tables.devices, key=lambda d: (-memory[d], speed[d]))
    orders = [by_speed, by_memory, by_speed[::-1], _along_links(guide, by_speed)]
    most = guide.most_members()
    rank = {d: place for place, d in enumerate(tables.devices)}
    found: dict[Groups, None] = {((d,),): None for d in by_speed[:4]}
    for order in orders:
        for count in range(1, min(len(order), guide.blocks, 10) + 1):
            for used in {len(order), max(count, len(order) // 2), count, min(len(order), count * most)}:
                groups = _runs(order[:used], count, {d: 1 / speed[d] for d in order})
                if all(len(g) <= most for g in groups):
                    found[tuple(_ordered(g, rank) for g in groups)] = None
    return list(found)


def _along_links(guide: Guide, devices: Sequence[str]) -> list[str]:
    """An order in which each device follows the one it is best connected with."""
    tables, left = guide.cost.tables, [*devices]
    order = [left.pop(0)]
    while left:
        nearest = min(left, key=lambda d: tables.transfer_s(order[-1], d, 1e6) + tables.latency_s(order[-1], d))
        left.remove(nearest)
        order.append(nearest)
    return order


def _runs(order: Sequence[str], count: int, strength: dict[str, float]) -> Groups:
    """The order cut into runs of about equal strength."""
    whole = sum(strength[d] for d in order)
    groups: list[tuple[str, ...]] = []
    run: list[str] = []
    done = 0.0
    for i, device in enumerate(order):
        run.append(device)
        done += strength[device]
        left = count - len(groups) - 1
        if left and (done >= whole * (len(groups) + 1) / count or len(order) - i - 1 == left):
            groups.append(tuple(run))
            run = []
    groups.append(tuple(run))
    return tuple(groups)


def without(groups: Groups, device: str) -> Groups:
    """The sequence without a device, and without its group if it was alone."""
    return tuple(kept for g in groups if (kept := tuple(d for d in g if d != device)))


def _swapped(groups: Groups, places: tuple[int, int], pair: tuple[str, str], rank: Mapping[str, int]) -> Groups:
    """The first of two devices in the second one's place, and the other way round."""
    changed = list(groups)
    for place, (leaves, comes) in zip(places, (pair, pair[::-1]), strict=True):
        changed[place] = _ordered(tuple(comes if d == leaves else d for d in groups[place]), rank)
    return tuple(changed)


def _ordered(group: Sequence[str], rank: Mapping[str, int]) -> tuple[str, ...]:
    """Members in the fleet's order, so that equal groups are equal."""
    return tuple(sorted(group, key=rank.__getitem__))
