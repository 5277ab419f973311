"""How many bytes of tensors are alive: what a piece of work keeps, and most at any moment."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def meter(device: torch.device, known: Iterable[torch.Tensor]) -> StorageMeter | CudaMeter:
    """The meter of a kind of device: a context that counts tensors made within it, for as long as they live.

    `known` are tensors that are there already and do not count.
    """
    return CudaMeter(device) if device.type == "cuda" else StorageMeter(known)


class StorageMeter(TorchDispatchMode):
    """Watches every operator of this thread, forward and backward; exact for all memory that results live in."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._live: set[int] = set()
        self.now = 0  # bytes alive
        self.peak = 0  # most of them at once since the beginning

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # "skip" would import torch's compiler, 1.5 CPU-seconds, only to keep it away

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs the operator and counts the storages of its results."""
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, torch.Tensor):
                self._count(part.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or key in self._live:
            return
        self._live.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        # The Python object lives as long as the storage, also where only autograd still holds it.
        weakref.finalize(storage, self._gone, key, size).atexit = False

    def _gone(self, key: int, size: int) -> None:
        self._live.discard(key)
        self.now -= size


class CudaMeter:
    """What torch's allocator says of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> CudaMeter:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def now(self) -> int:
        """Bytes allocated since the beginning and not freed."""
        return torch.cuda.memory_allocated(self._device) - self._before

    @property
    def peak(self) -> int:
        """Most of them at once."""
        return torch.cuda.max_memory_allocated(self._device) - self._before


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of these tensors, memory that several share counted once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
