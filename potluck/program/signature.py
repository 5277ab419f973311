"""Which blocks are the same work: the same operators on the same shapes, whatever the names."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from potluck.program.carve import Piece
from potluck.program.program import Arg, Items, Program, Ref


def signature(program: Program, piece: Piece) -> str:
    """A digest that two pieces share if they do the same work, value for value."""
    names: dict[int, int] = {}
    facts: list[Any] = []

    def rename(value: int) -> int:
        if value not in names:
            names[value] = len(names)
            known = program.values[value]
            facts.append((known.shape, known.dtype, known.requires_grad))
        return names[value]

    def renamed(arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return ("ref", rename(arg.id))
        if isinstance(arg, Items):
            return [renamed(item) for item in arg.items]
        return arg

    nodes = [
        (
            node.op,
            [renamed(arg) for arg in node.args],
            sorted((key, renamed(arg)) for key, arg in node.kwargs.items()),
            [rename(output) if output >= 0 else -1 for output in node.outputs],
            node.no_grad,
        )
        for node in (program.nodes[position] for position in piece.nodes)
    ]
    kinds = {s.id: (s.kind, s.trainable) for s in program.sources}
    sources = sorted((names[value], kind) for value, kind in kinds.items() if value in names)
    updates = [(program.updates[i].kind, program.updates[i].amount) for i in piece.updates]
    ends = [[names.get(v, -1) for v in ids] for ids in (piece.feeds, piece.receives, piece.sends, piece.outputs)]
    return hashlib.sha256(msgspec.json.encode((nodes, facts, sources, updates, ends))).hexdigest()
