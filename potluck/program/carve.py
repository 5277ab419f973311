"""Cuts a run of blocks out of a program: which nodes it runs, what it needs and what others need of it.

Values that depend on no parameter are not sent: whoever needs one computes it again from the feeds.
"""

from __future__ import annotations

from dataclasses import dataclass

from potluck.program.program import Program, Source, inputs_of


@dataclass(frozen=True)
class Piece:
    """A stage's part of a program, as ids of values."""

    nodes: tuple[int, ...]  # positions in program.nodes, in order
    feeds: tuple[int, ...]  # inputs and labels it needs
    receives: tuple[int, ...]  # values made in earlier stages
    sends: tuple[int, ...]  # values later stages need
    outputs: tuple[int, ...]  # the program's outputs, at the last stage
    parameters: tuple[str, ...]  # used here, in program order
    buffers: tuple[str, ...]
    constants: tuple[str, ...]
    updates: tuple[int, ...]  # positions in program.updates


def has_backward(program: Program, piece: Piece) -> bool:
    """Whether anything there needs a gradient: not before the first parameter that is trained."""
    ends = (*piece.receives, *piece.sends, *piece.outputs)
    return any(program.values[value].requires_grad for value in ends)


class Carver:
    """Answers questions about cutting one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.maker = {o: i for i, n in enumerate(program.nodes) for o in n.outputs if o >= 0}
        self.readers: dict[int, list[int]] = {}
        for i, node in enumerate(program.nodes):
            for value in inputs_of(node):
                self.readers.setdefault(value, []).append(i)
        self.weighted = self._weighted()
        self.free_nodes = {i for i, n in enumerate(program.nodes) if not any(o in self.weighted for o in n.outputs)}
        self.homes = [self._home(i) for i in range(len(program.updates))]
        self.spans = self._spans()

    def _weighted(self) -> set[int]:
        """Values that depend on a parameter or on a buffer that changes, or that a buffer becomes: not to be redone."""
        program = self.program
        changed = {u.buffer for u in program.updates}
        weighted = {
            s.id
            for s in program.sources
            if s.kind == "parameter" or s.updated or (s.kind == "buffer" and s.name in changed)
        }
        becomes = {u.value for u in program.updates if u.value >= 0}
        for node in program.nodes:
            if becomes.intersection(node.outputs) or any(v in weighted for v in inputs_of(node)):
                weighted.update(o for o in node.outputs if o >= 0)
        return weighted

    def _home(self, index: int) -> int:
        """Node position an update belongs to: its maker, or for a counter the update beside it."""
        update = self.program.updates[index]
        if update.value >= 0:
            return self.maker[update.value]
        module = update.buffer.rpartition(".")[0]
        for other in self.program.updates:
            if other.value >= 0 and other.buffer.rpartition(".")[0] == module:
                return self.maker[other.value]
        for i, node in enumerate(self.program.nodes):
            if node.module == module and i not in self.free_nodes:
                return i
        return 0

    def _spans(self) -> dict[int, tuple[int, int]]:
        """For every value that must travel: its maker's position and its last reader's. Outputs go to the very end."""
        end = len(self.program.nodes) - 1
        spans = {}
        for value, maker in self.maker.items():
            if value not in self.weighted:
                continue
            last = end if value in self.program.outputs else max(self.readers.get(value, ()), default=maker)
            if last > maker:
                spans[value] = (maker, last)
        return spans

    def crossing(self, position: int) -> list[int]:
        """Values made before a node position and needed at or after it, that must be sent."""
        return sorted(v for v, (maker, last) in self.spans.items() if maker < position <= last)

    def piece(self, start: int, stop: int) -> Piece:
        """The part of the program that nodes [start, stop) are, with what parameter-free work they need."""
        outputs = self.program.outputs if stop == len(self.program.nodes) else ()
        nodes = {i for i in range(start, stop) if i not in self.free_nodes}
        receives: set[int] = set()
        given: set[int] = set()
        pending = [v for i in nodes for v in inputs_of(self.program.nodes[i])] + list(outputs)
        while pending:
            value = pending.pop()
            maker = self.maker.get(value)
            if maker is None:
                given.add(value)
            elif maker in self.free_nodes:
                if maker not in nodes:
                    nodes.add(maker)
                    pending += inputs_of(self.program.nodes[maker])
            elif maker < start:
                receives.add(value)
        updates = tuple(i for i, home in enumerate(self.homes) if start <= home < stop)
        updated = {self.program.updates[i].buffer for i in updates}
        held = [s for s in self.program.sources if s.id in given or (s.kind == "buffer" and s.name in updated)]
        return Piece(
            nodes=tuple(sorted(nodes)),
            feeds=tuple(s.id for s in held if s.kind == "input"),
            receives=tuple(sorted(receives)),
            sends=tuple(sorted(v for v, (maker, last) in self.spans.items() if start <= maker < stop <= last)),
            outputs=tuple(outputs),
            parameters=_names(held, "parameter"),
            buffers=_names(held, "buffer"),
            constants=_names(held, "constant"),
            updates=updates,
        )


def _names(sources: list[Source], kind: str) -> tuple[str, ...]:
    return tuple(s.name for s in sources if s.kind == kind)
