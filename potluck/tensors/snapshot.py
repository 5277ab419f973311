"""The state of some blocks at one round: weights, buffers and optimizer state, with a digest, as safetensors.

No generator state belongs to it: all randomness is a function of (seed, round, micro-batch, node, row).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as _load
from safetensors.torch import save as _save

from potluck.advice import said
from potluck.errors import InputError

Tensors = Mapping[str, torch.Tensor]

_WEIGHTS, _OPTIMIZER = "weights:", "optimizer:"


@dataclass(frozen=True)
class Snapshot:
    """Tensors that nobody changes any more. It cannot be made without its optimizer part."""

    round: int  # rounds committed: training goes on with this one
    weights: dict[str, torch.Tensor]  # parameters and persistent buffers, by the unsplit model's names
    optimizer: dict[str, torch.Tensor]  # "<parameter>/<slot>"; empty only if the optimizer keeps nothing
    digest: str  # of round, names, dtypes, shapes and bytes

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for part in (self.weights, self.optimizer) for t in part.values())


def take(round: int, weights: Tensors, optimizer: Tensors) -> Snapshot:
    """A snapshot of copies on the CPU; the originals may change afterwards."""
    return _sealed(round, _copies(weights), _copies(optimizer))


def encode(snapshot: Snapshot) -> bytes:
    named = {f"{_WEIGHTS}{k}": t for k, t in snapshot.weights.items()}
    named |= {f"{_OPTIMIZER}{k}": t for k, t in snapshot.optimizer.items()}
    return _save(separate(named), {"round": str(snapshot.round), "digest": snapshot.digest})


def decode(data: bytes, *, round: int, digest: str) -> Snapshot:
    """The snapshot that was encoded, if it is the one expected; otherwise an InputError."""
    named = parse(data, "snapshot")
    parts: dict[str, dict[str, torch.Tensor]] = {_WEIGHTS: {}, _OPTIMIZER: {}}
    for key, tensor in named.items():
        part, _, name = key.partition(":")
        if f"{part}:" not in parts:
            raise InputError(f"snapshot: unknown tensor {key!r}; take it again on a device with the same version")
        parts[f"{part}:"][name] = tensor
    snapshot = _sealed(round, parts[_WEIGHTS], parts[_OPTIMIZER])
    if snapshot.digest != digest:
        raise InputError(f"snapshot of round {round}: its digest differs, it was damaged on the way; send it again")
    return snapshot


def tensor_digest(tensors: Tensors) -> str:
    """Digest of names, dtypes, shapes and bytes, whatever the order of the mapping."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        whole.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        whole.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def separate(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The tensors, contiguous and on the CPU; those that share memory (tied weights) are copied, one per name."""
    result: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        where = own.untyped_storage().data_ptr()
        if where in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        result[name] = own
    return result


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, for `Job.init`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give a safetensors file") from error
    return parse(data, str(path))


def parse(data: bytes, what: str) -> dict[str, torch.Tensor]:
    """The tensors of safetensors bytes; an InputError naming `what` if they are not."""
    try:
        return _load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = said(error)
        raise InputError(f"{what}: not a valid safetensors file: {reason}; give an undamaged one") from error


def _copies(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {n: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for n, t in tensors.items()}


def _sealed(round: int, weights: dict[str, torch.Tensor], optimizer: dict[str, torch.Tensor]) -> Snapshot:
    parts = f"{round}\0{tensor_digest(weights)}\0{tensor_digest(optimizer)}"
    return Snapshot(round, weights, optimizer, hashlib.sha256(parts.encode()).hexdigest())
