"""Ranks of one Gloo group, as torchrun would start them: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from potluck.errors import InputError


@dataclass(frozen=True)
class Place:
    """Which of how many ranks this process is."""

    rank: int
    world_size: int


@contextlib.contextmanager
def joined(timeout_s: float) -> Iterator[Place]:
    """The group of all ranks while the block runs; every wait in it ends after `timeout_s`."""
    missing = [n for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise InputError(f"{', '.join(missing)} not set; start one process per rank with them, as torchrun does")
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    yield Place(dist.get_rank(), dist.get_world_size())
    # On failure the process ends anyway, and leaving a broken group can block.
    dist.barrier()
    dist.destroy_process_group()


def agreed(count: int) -> int:
    """What the first rank says."""
    said = torch.tensor([count])
    dist.broadcast(said, 0)
    return int(said)
