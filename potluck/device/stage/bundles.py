"""Gradients of many parameters as few tensors: small ones lie end to end, to be sent and added up at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from potluck.errors import LinkError

_LARGE_BYTES = 1 << 19  # from here on a gradient travels as it is; a copy of it would cost more than a message part

_Gradients = Mapping[str, torch.Tensor | None]


@dataclass(frozen=True)
class Bundle:
    """The gradients of some parameters, as far as there are any."""

    names: tuple[str, ...]
    present: tuple[bool, ...]
    pieces: list[torch.Tensor]  # small ones by type, in the order of names; then the large ones

    @classmethod
    def of(cls, names: Sequence[str], gradients: _Gradients) -> Bundle:
        """Gathers them."""
        given = [g for n in names if (g := gradients[n]) is not None]
        small: dict[torch.dtype, list[torch.Tensor]] = {}
        for gradient in given:
            if gradient.nbytes < _LARGE_BYTES:
                small.setdefault(gradient.dtype, []).append(gradient.reshape(-1))
        large = [g.contiguous() for g in given if g.nbytes >= _LARGE_BYTES]
        present = tuple(gradients[n] is not None for n in names)
        return cls(tuple(names), present, [*(torch.cat(some) for some in small.values()), *large])

    @property
    def parts(self) -> list[torch.Tensor]:
        return [torch.tensor(self.present), *self.pieces]

    def by_name(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
        """Each gradient by itself; small ones share their memory with the bundle."""
        there = [parameters[n] for n, present in zip(self.names, self.present, strict=True) if present]
        kinds = _kinds(there)
        small = {
            kind: iter(piece.split([p.numel() for p in there if p.dtype == kind and p.nbytes < _LARGE_BYTES]))
            for kind, piece in zip(kinds, self.pieces, strict=False)
        }
        large = iter(self.pieces[len(kinds) :])
        found: dict[str, torch.Tensor | None] = dict.fromkeys(self.names)
        for name, present in zip(self.names, self.present, strict=True):
            if present:
                like = parameters[name]
                found[name] = next(large if like.nbytes >= _LARGE_BYTES else small[like.dtype]).view(like.shape)
        return found


def take(
    parts: Iterator[torch.Tensor | None], names: Sequence[str], parameters: Mapping[str, torch.Tensor], peer: str
) -> Bundle:
    """The next bundle of a message, of the gradients of these parameters."""
    head = next(parts, None)
    if head is None or len(head) != len(names):
        raise LinkError(f"damaged gradients arrived from {peer}; the link is broken")
    present = tuple(bool(there) for there in head.tolist())
    known = [parameters[n] for n, there in zip(names, present, strict=True) if there]
    sizes = [
        (kind, sum(p.numel() for p in known if p.dtype == kind and p.nbytes < _LARGE_BYTES)) for kind in _kinds(known)
    ]
    sizes += [(p.dtype, p.numel()) for p in known if p.nbytes >= _LARGE_BYTES]
    pieces = []
    for kind, size in sizes:
        piece = next(parts, None)
        if piece is None or piece.dtype != kind or piece.numel() != size:
            raise LinkError(f"damaged gradients arrived from {peer}; the link is broken")
        pieces.append(piece)
    return Bundle(tuple(names), present, pieces)


def total(bundles: Sequence[Bundle], parameters: Mapping[str, torch.Tensor]) -> Bundle:
    """The sum in the given order, in the memory of the first; who has no gradient (a short round) is left out."""
    first, *rest = [b for b in bundles if any(b.present)] or bundles[:1]
    if all(bundle.present == first.present for bundle in rest):
        for bundle in rest:
            for piece, more in zip(first.pieces, bundle.pieces, strict=True):
                piece.view(-1).add_(more.view(-1))
        return first
    apart = [bundle.by_name(parameters) for bundle in (first, *rest)]
    return Bundle.of(first.names, {name: _sum([some[name] for some in apart]) for name in first.names})


def _sum(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    added: torch.Tensor | None = None
    for part in parts:
        if part is not None:
            added = part if added is None else added.add_(part)
    return added


def _kinds(parameters: Sequence[torch.Tensor]) -> list[torch.dtype]:
    """Types of the small ones, in the order in which they come."""
    return list(dict.fromkeys(p.dtype for p in parameters if p.nbytes < _LARGE_BYTES))
