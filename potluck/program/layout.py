"""Which values go between which stages of a plan: the same answer on every device and on the coordinator."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.compress.codec import Codec
from potluck.compress.codec_registry import codec_named
from potluck.plan.cost.edges import handed, message_bytes
from potluck.plan.schedule.holders import stage_of
from potluck.plan.schedule.under_way import backlog
from potluck.program.blocks import crossings, value_bytes
from potluck.program.carve import Carver, Piece
from potluck.program.program import ProgramPair
from potluck.types import Crossing, Plan

_Crossed = dict[tuple[int, int], list[Crossing]]


class PlanLayout:
    """The stages of a plan as pieces of the programs, and the edges between them."""

    def __init__(self, programs: ProgramPair, plan: Plan) -> None:
        self.programs, self.plan = programs, plan
        self.codecs = [codec_named(stage.codec) for stage in plan.stages]
        self.pieces: dict[str, list[Piece]] = {}
        self.edges: dict[str, dict[tuple[int, int], tuple[int, ...]]] = {}
        self._crossed: dict[str, tuple[_Crossed, _Crossed]] = {}
        for program in (programs.train, programs.eval):
            carver = Carver(program)
            pieces = [carver.piece(*program.block_range(*s.blocks)) for s in plan.stages]
            self.pieces[program.mode] = pieces
            self._crossed[program.mode] = out, _ = _handed(crossings(program, pieces), len(pieces))
            self.edges[program.mode] = _values(out)
        # (earlier, later) → values whose gradient the later stage gives the earlier one
        self.gradients = _values(self._crossed["train"][1])
        self.users: dict[str, list[int]] = {}  # parameter → stages that use it, owner first
        for index, piece in enumerate(self.pieces["train"]):
            for name in piece.parameters:
                self.users.setdefault(name, []).append(index)
        for index, piece in enumerate(self.pieces["eval"]):
            for name in piece.parameters:
                if index not in self.users.setdefault(name, []):
                    self.users[name].append(index)
        self.owner = {name: stages[0] for name, stages in self.users.items()}

    def sources(self, mode: str, stage: int) -> list[int]:
        """Earlier stages that give this one something."""
        return [a for a, b in sorted(self.edges[mode]) if b == stage]

    def targets(self, mode: str, stage: int) -> list[int]:
        """Later stages that take something from this one."""
        return [b for a, b in sorted(self.edges[mode]) if a == stage]

    def awaits_gradients(self, stage: int) -> bool:
        """Whether an earlier stage waits for gradients of this one."""
        return any(later == stage for _, later in self.gradients)

    def coded(self) -> Iterator[tuple[Codec, Crossing]]:
        """What crosses the cuts in training, with the codec of the cut. Gradients are like their values."""
        for (earlier, _), crossed in self._crossed["train"][0].items():
            yield from ((self.codecs[earlier], crossing) for crossing in crossed)

    def window_bytes(self) -> int:
        """Bytes that may wait on a link between two devices of this plan without one blocking the other for ever."""
        plan = self.plan
        needs = [
            backlog(plan, a, b) * sum(message_bytes(c, plan.micro_batch_size, plan.stages[a].codec) for c in crossed)
            for way in self._crossed["train"]
            for (a, b), crossed in way.items()
        ]
        return max(needs, default=0) + self._summed_bytes()

    def _summed_bytes(self) -> int:
        """Most bytes of gradients that two devices may have on the way to each other while they are summed."""
        program = self.programs.train
        trainable = {s.name: value_bytes(program.values[s.id], 1) for s in program.sources if s.trainable}
        held = {n: sum(len(self.plan.stages[s].group) for s in stages) for n, stages in self.users.items()}
        return sum(size for name, size in trainable.items() if held.get(name, 0) > 1)

    def running_statistics(self) -> list[bool]:
        """Of each stage, whether its forwards change running statistics."""
        updates = self.programs.train.updates
        return [any(updates[i].kind != "value" for i in piece.updates) for piece in self.pieces["train"]]

    def is_fed(self, mode: str, stage: int) -> bool:
        """Whether the coordinator sends this stage something for every micro-batch."""
        piece = self.pieces[mode][stage]
        return bool(piece.feeds) or (mode == "train" and bool(piece.outputs))

    def feed_names(self, mode: str, stage: int) -> list[str]:
        program = self.programs.train if mode == "train" else self.programs.eval
        wanted = set(self.pieces[mode][stage].feeds)
        return [s.name for s in program.sources if s.id in wanted]

    def state_names(self, stage: int) -> tuple[list[str], list[str]]:
        """Parameters and buffers that a device of the stage holds."""
        pieces = [self.pieces["train"][stage], self.pieces["eval"][stage]]
        parameters = list(dict.fromkeys(n for p in pieces for n in p.parameters))
        return parameters, list(dict.fromkeys(n for p in pieces for n in p.buffers))

    def reported_names(self, device: str) -> tuple[list[str], list[str]]:
        """Parameters and buffers whose state this device reports: its stage's own, first member of the group only."""
        stage = stage_of(self.plan, device)
        if self.plan.stages[stage].group[0].device != device:
            return [], []
        parameters, buffers = self.state_names(stage)
        earlier = {n for s in range(stage) for n in self.state_names(s)[1]}
        return [n for n in parameters if self.owner[n] == stage], [n for n in buffers if n not in earlier]


def _handed(crossings: tuple[Crossing, ...], stages: int) -> tuple[_Crossed, _Crossed]:
    """(earlier, later) → what goes forward, and what has a gradient that comes back."""
    both: tuple[_Crossed, _Crossed] = ({}, {})
    for pair, crossing, back in handed(crossings, range(stages)):
        both[back].setdefault(pair, []).append(crossing)
    return both


def _values(crossed: _Crossed) -> dict[tuple[int, int], tuple[int, ...]]:
    return {pair: tuple(c.value for c in crossed[pair]) for pair in sorted(crossed)}
