"""Where a program can be cut: a pure function of the program, never of the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from potluck.model.carve import Carver, Piece
from potluck.model.operators import VIEWS, base_name
from potluck.model.program import Program, ProgramPair, Tensor, inputs_of, shape_of
from potluck.types import Block, Crossing, Feed, ModelFacts

ITEM_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


def value_bytes(tensor: Tensor, rows: int) -> int:
    count = 1
    for size in shape_of(tensor, rows):
        count *= size
    return count * ITEM_BYTES.get(tensor.dtype, 8)


def sample_bytes(tensor: Tensor) -> int:
    """Bytes of one more sample."""
    return value_bytes(tensor, 3) - value_bytes(tensor, 2)


def with_boundaries(train: Program, evaluation: Program, hand_cut: bool) -> tuple[Program, Program]:
    """Both programs with their blocks: cut at the same places, each block with parameters of its own."""
    train_cut, eval_cut = _Cutter(train), _Cutter(evaluation)
    chosen = train_cut.between_modules() if hand_cut else train_cut.choose()
    pairs: list[tuple[int, int]] = []
    for position in chosen:
        twin = eval_cut.twin(train_cut.users_before(position), after=pairs[-1][1] if pairs else 0)
        if twin is not None:
            pairs.append((position, twin))
    return (
        msgspec.structs.replace(train, boundaries=tuple(a for a, _ in pairs)),
        msgspec.structs.replace(evaluation, boundaries=tuple(b for _, b in pairs)),
    )


class _Cutter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.carver = Carver(program)
        self.length = len(program.nodes)
        own = {s.id: s.name for s in program.sources if s.kind in ("parameter", "buffer")}
        self.uses = [{own[v] for v in inputs_of(n) if v in own} for n in program.nodes]
        for index, update in enumerate(program.updates):
            self.uses[self.carver._update_home(index)].add(update.buffer)
        counts = [0] * (self.length + 1)
        weights = [0] * (self.length + 1)
        self.valid = [True] * (self.length + 1)
        for value, (maker, last) in self.carver.spans.items():
            tensor = program.values[value]
            for position in range(maker + 1, last + 1):
                counts[position] += 1
                weights[position] += sample_bytes(tensor)
                self.valid[position] &= tensor.batch_axis is not None
        self.counts, self.weights = counts, weights

    def choose(self) -> list[int]:
        """Block beginnings: between any two uses of parameters the cheapest cut, fewest tensors first."""
        users = [i for i, names in enumerate(self.uses) if names]
        self._span = (users[0], users[-1] + 1) if users else (0, 0)
        candidates = self._thin(*self._span, max(8, self.length // 16))
        chosen = []
        for left, right in zip(users, users[1:], strict=False):
            between = [p for p in range(left + 1, right + 1) if p in candidates]
            if between:
                chosen.append(min(between, key=lambda p: (self.counts[p], self.weights[p], -p)))
        return chosen

    def _thin(self, low: int, high: int, enough: int) -> set[int]:
        """Cuts with the fewest crossing tensors; stretches that offer none so thin are searched on their own."""
        inside = [p for p in range(low + 1, high) if self.valid[p]]
        if not inside or (high - low <= enough and (low, high) != self._span):
            return set()
        fewest = min(self.counts[p] for p in inside)
        found = {p for p in inside if self.counts[p] == fewest}
        edges = [low, *sorted(found), high]
        for left, right in zip(edges, edges[1:], strict=False):
            if right - left < high - low:
                found |= self._thin(left, right, enough)
        return found

    def between_modules(self) -> list[int]:
        """Block beginnings of a hand-cut model: only between the modules that were given."""
        tops = [n.module.split(".")[0] for n in self.program.nodes]
        steps = [i for i in range(1, self.length) if tops[i] != tops[i - 1] and tops[i].isdigit()]
        return [i for i in steps if self.valid[i]]

    def users_before(self, position: int) -> tuple[set[str], set[str]]:
        """Names used before a position and names first used after it."""
        before = set().union(*self.uses[:position])
        after = set().union(*self.uses[position:])
        return before, after - before

    def twin(self, names: tuple[set[str], set[str]], after: int) -> int | None:
        """The position that parts the same parameters in this program, or None."""
        before, later = names
        shared = before & later
        low = max((i for i, u in enumerate(self.uses) if u & (before - shared) and not self._only_tied(u)), default=-1)
        high = min((i for i, u in enumerate(self.uses) if u & later), default=self.length)
        between = [p for p in range(max(low + 1, after + 1, 1), min(high, self.length - 1) + 1) if self.valid[p]]
        return min(between, key=lambda p: (self.counts[p], self.weights[p], -p)) if between else None

    def _only_tied(self, used: set[str]) -> bool:
        return all(name in self.tied for name in used)

    @property
    def tied(self) -> set[str]:
        """Names used at more than one node: their second use does not hold a cut back."""
        seen: dict[str, int] = {}
        for used in self.uses:
            for name in used:
                seen[name] = seen.get(name, 0) + 1
        return {name for name, times in seen.items() if times > 1}


def facts(pair: ProgramPair, optimizer_slots: int) -> ModelFacts:
    """What planning needs to know of the programs."""
    carver = Carver(pair.train)
    eval_carver = Carver(pair.eval)
    count = pair.train.block_count
    pieces = [carver.piece(*pair.train.block_range(i, i + 1)) for i in range(count)]
    evals = [eval_carver.piece(*pair.eval.block_range(i, i + 1)) for i in range(count)]
    owners: dict[str, int] = {}
    users: dict[str, list[int]] = {}
    for i, piece in enumerate(pieces):
        for name in piece.parameters:
            owners.setdefault(name, i)
            users.setdefault(name, []).append(i)
    blocks = tuple(_block(pair.train, pieces, i, owners) for i in range(count))
    return ModelFacts(
        digest=pair.digest(),
        blocks=blocks,
        crossings=_crossings(pair.train, pieces),
        feeds=_feeds(pair, pieces, evals),
        tied=tuple((n, tuple(b)) for n, b in users.items() if len(b) > 1),
        optimizer_slots=optimizer_slots,
    )


def _block(program: Program, pieces: Sequence[Piece], index: int, owners: Mapping[str, int]) -> Block:
    piece = pieces[index]
    own = [s for s in program.sources if s.kind == "parameter" and owners.get(s.name) == index]
    buffers = [s for s in program.sources if s.kind == "buffer" and s.name in piece.buffers]
    nodes = [program.nodes[i] for i in piece.nodes]
    stash = sum(
        sample_bytes(program.values[o]) for n in nodes if base_name(n.op) not in VIEWS for o in n.outputs if o >= 0
    )
    last = index == len(pieces) - 1
    start, stop = program.block_range(index, index + 1)
    labels = [program.nodes[i].module for i in range(start, stop) if program.nodes[i].module]
    return Block(
        index=index,
        label=_span_label(labels),
        parameters=tuple(s.name for s in own),
        weight_bytes=sum(value_bytes(program.values[s.id], 1) for s in own),
        trainable_bytes=sum(value_bytes(program.values[s.id], 1) for s in own if s.trainable),
        buffer_bytes=sum(value_bytes(program.values[s.id], 1) for s in buffers),
        stash_bytes=stash,
        coupled=bool(set(piece.nodes) & set(program.coupled)) or (last and not program.separable_loss),
        exclusive=any(program.updates[u].kind == "value" for u in piece.updates),
    )


def _span_label(labels: Sequence[str]) -> str:
    if not labels:
        return "model"
    return labels[0] if labels[0] == labels[-1] else f"{labels[0]} … {labels[-1]}"


def _crossings(program: Program, pieces: Sequence[Piece]) -> tuple[Crossing, ...]:
    producers = {v: i for i, p in enumerate(pieces) for v in p.sends}
    found = []
    for value, producer in sorted(producers.items()):
        consumers = tuple(i for i, p in enumerate(pieces) if value in p.receives)
        tensor = program.values[value]
        found.append(
            Crossing(
                value=value,
                producer=producer,
                consumers=consumers,
                sample_bytes=sample_bytes(tensor),
                gradient=tensor.requires_grad,
            )
        )
    return tuple(found)


def _feeds(pair: ProgramPair, pieces: Sequence[Piece], evals: Sequence[Piece]) -> tuple[Feed, ...]:
    found = []
    for source in pair.train.sources:
        if source.kind != "input":
            continue
        users = tuple(i for i, p in enumerate(pieces) if source.id in p.feeds)
        found.append(Feed(name=source.name, consumers=users, sample_bytes=sample_bytes(pair.train.values[source.id])))
    return tuple(found)
