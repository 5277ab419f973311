"""Cuts a run of blocks out of a program: which nodes it runs, what it needs and what others need of it.

Values that depend on no parameter are not sent: whoever needs one computes it again from the feeds.
"""

from __future__ import annotations

from dataclasses import dataclass

from potluck.model.program import Program, inputs_of


@dataclass(frozen=True)
class Piece:
    """A stage's part of a program, as ids of values."""

    nodes: tuple[int, ...]  # positions in program.nodes, in order
    feeds: tuple[int, ...]  # inputs and labels it needs
    receives: tuple[int, ...]  # values made in earlier stages
    sends: tuple[int, ...]  # values later stages need
    outputs: tuple[int, ...]  # program outputs made here
    parameters: tuple[str, ...]  # used here, in program order
    buffers: tuple[str, ...]
    constants: tuple[str, ...]
    updates: tuple[int, ...]  # positions in program.updates


class Carver:
    """Answers questions about cutting one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sources = {s.id: s for s in program.sources}
        self.maker = {o: i for i, n in enumerate(program.nodes) for o in n.outputs if o >= 0}
        self.readers: dict[int, list[int]] = {}
        for i, node in enumerate(program.nodes):
            for value in inputs_of(node):
                self.readers.setdefault(value, []).append(i)
        changed = {u.buffer for u in program.updates if u.kind == "value"}
        heavy = {s.id for s in program.sources if s.kind == "parameter" or s.name in changed}
        self.weighted = set(heavy)  # values that depend on a parameter, or on a buffer the forward replaces
        for node in program.nodes:
            if any(v in self.weighted for v in inputs_of(node)):
                self.weighted.update(o for o in node.outputs if o >= 0)
        self.free_nodes = {i for i, n in enumerate(program.nodes) if not any(o in self.weighted for o in n.outputs)}
        self._needed_at_end = set(program.outputs) | {u.value for u in program.updates if u.value >= 0}
        self._free_needs: dict[int, frozenset[int]] = {}

    def crossing(self, position: int) -> list[int]:
        """Values made before a node position and needed at or after it, that must be sent."""
        return sorted(v for v in self.spans if self.spans[v][0] < position <= self.spans[v][1])

    @property
    def spans(self) -> dict[int, tuple[int, int]]:
        """For every value that must travel: its maker's position and its last reader's."""
        if not hasattr(self, "_spans"):
            self._spans: dict[int, tuple[int, int]] = {}
            for value, maker in self.maker.items():
                if value not in self.weighted:
                    continue
                readers = [r for r in self.readers.get(value, ()) if r not in self.free_nodes]
                last = max(readers, default=maker)
                if last > maker:
                    self._spans[value] = (maker, last)
        return self._spans

    def piece(self, start: int, stop: int) -> Piece:
        """The part of the program that nodes [start, stop) are, with what parameter-free work they need."""
        own = [i for i in range(start, stop) if i not in self.free_nodes]
        if stop == len(self.program.nodes):  # parameter-free results belong to the end
            own += [self.maker[o] for o in self._needed_at_end if self.maker.get(o, -1) in self.free_nodes]
        nodes = set(own)
        receives: set[int] = set()
        given: set[int] = set()
        pending = list(own)
        while pending:
            for value in inputs_of(self.program.nodes[pending.pop()]):
                maker = self.maker.get(value)
                if maker is None:
                    given.add(value)
                elif maker in self.free_nodes:
                    if maker not in nodes:
                        nodes.add(maker)
                        pending.append(maker)
                elif maker < start:
                    receives.add(value)
        made = {o for i in nodes if i not in self.free_nodes for o in self.program.nodes[i].outputs}
        sends = [v for v in made if v in self.spans and self.spans[v][1] >= stop]
        outputs = [o for o in self.program.outputs if self.maker.get(o) in nodes]
        return Piece(
            nodes=tuple(sorted(nodes)),
            feeds=self._given(given, "input", ids=True),  # type: ignore[arg-type]
            receives=tuple(sorted(receives)),
            sends=tuple(sorted(sends)),
            outputs=tuple(outputs),
            parameters=self._given(given, "parameter"),  # type: ignore[arg-type]
            buffers=self._given(given | self._updated(made, start, stop), "buffer"),  # type: ignore[arg-type]
            constants=self._given(given, "constant"),  # type: ignore[arg-type]
            updates=tuple(i for i, u in enumerate(self.program.updates) if self._update_home(i) in range(start, stop)),
        )

    def _given(self, values: set[int], kind: str, ids: bool = False) -> tuple[str | int, ...]:
        return tuple(s.id if ids else s.name for s in self.program.sources if s.id in values and s.kind == kind)

    def _updated(self, made: set[int], start: int, stop: int) -> set[int]:
        names = {u.buffer for i, u in enumerate(self.program.updates) if self._update_home(i) in range(start, stop)}
        return {s.id for s in self.program.sources if s.name in names}

    def _update_home(self, index: int) -> int:
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
