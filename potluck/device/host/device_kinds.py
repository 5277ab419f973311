"""The one place that knows kinds of devices: cpu, cuda, mps."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import re
from collections.abc import Iterable

import psutil
import torch

from potluck.errors import InputError
from potluck.memory_limit import limit_memory
from potluck.types import DeviceKind, DeviceSpec

_M_ARENA_MAX = -8  # of malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_FROM_SYSTEM_BYTES = 32 * 2**20  # from here on, memory comes from the system and goes back there
# That the process keeps at the end of its heap: to give memory back and ask again costs a fault a page.
_KEPT_BYTES = 512 * 2**20
_CARD = re.compile("[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def torch_device(kind: DeviceKind) -> torch.device:
    """The torch device of a kind; an InputError if this machine has none."""
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--device cuda: this machine's torch sees no CUDA GPU; use --device cpu, or install a CUDA build"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError("--device mps: this machine has no Metal GPU that torch can use; use --device cpu")
    return torch.device(kind)


def settle(spec: DeviceSpec) -> torch.device:
    """Prepares this process to be the device: threads, exact arithmetic, memory limit."""
    settle_heap()
    torch.set_num_threads(spec.threads)
    device = torch_device(spec.kind)
    if spec.kind == "cuda":  # the same numbers as elsewhere: no reduced-precision shortcuts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    if spec.memory_bytes:
        limit_memory(spec.memory_bytes)
    return device


def settle_heap() -> None:
    """Keeps all threads on one heap, and memory in the process.

    Tensors arrive in the link's thread and are let go in another; each heap of its own would keep what it once needed.
    And memory given back to the system costs a page fault for every 4 kB when the next message needs it again.
    """
    with contextlib.suppress(AttributeError, OSError):  # only the GNU library has this
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_M_ARENA_MAX, 1)
        allocator.mallopt(_M_MMAP_THRESHOLD, _FROM_SYSTEM_BYTES)
        allocator.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def host_words(kind: DeviceKind) -> str:
    """This machine in words: what computes, how many cores and how much memory. Profiles hold for one of these."""
    chip = torch.cuda.get_device_name() if kind == "cuda" else _processor()
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return f"{platform.node()}: {chip}, {os.cpu_count()} cores, {round(pages / 2**30)} GiB"


def machine_word() -> str:
    """A word for this machine, and for no other made from the same image; "" where it has nothing to be told by."""
    cards = [a.address for found in psutil.net_if_addrs().values() for a in found if a.family == psutil.AF_LINK]
    card = built_in(cards)
    return card and hashlib.sha256(card.encode()).hexdigest()[:16]  # the address itself is nobody's business


def built_in(cards: Iterable[str]) -> str:
    """The first of these network cards that has its address from its maker: others are made up, and may change."""
    known = sorted(card for given in cards if _CARD.fullmatch(card := given.lower().replace("-", ":")))
    return next((card for card in known if card.strip("0:") and not int(card[:2], 16) & 2), "")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as facts:
            names = [line.partition(":")[2].strip() for line in facts if line.startswith(("model name", "Model"))]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no room, on the device or beside it; torch and Python say the latter only in words."""
    words = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in words or "start new thread" in words
