"""One device's blocks: weights, buffers and optimizer, and the forward and backward of one micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from potluck.compute.constants import constant_tensor
from potluck.compute.execution.execution import Registers, empty_registers
from potluck.compute.execution.executions import execution_named
from potluck.compute.kernels import leaks
from potluck.compute.late_weights import Owed, owed_bytes
from potluck.compute.norms import squared_norm
from potluck.compute.our_operators import Context
from potluck.compute.randomness import Draw
from potluck.compute.running_buffers import RunningBuffers
from potluck.compute.stage_optimizer import StageOptimizer
from potluck.compute.stash import Stash, Tap
from potluck.compute.weight_versions import OneStepLate, OneVersion, StageWeights, WeightVersions, parted
from potluck.job.optimizers import Optimizer
from potluck.program.carve import Carver, has_backward
from potluck.program.program import Program, ProgramPair

_MicroBatch = tuple[int, int]  # its round, and its place in it


@dataclass
class Kept:
    """What a recomputing stage keeps of a micro-batch: enough to run its forward again, to the same bits."""

    rows: Rows
    given: dict[int, torch.Tensor]
    received: dict[int, torch.Tensor]
    buffers: dict[int, torch.Tensor]  # as they were
    loss: torch.Tensor | None
    scale: float


@dataclass(frozen=True)
class Rows:
    """Which rows of which micro-batch are at hand."""

    round: int
    micro_batch: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass
class StageState:
    """Tensors of a stage under the names of the unsplit model."""

    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for part in (self.parameters, self.buffers, self.optimizer) for t in part.values())


class _Template(NamedTuple):
    """Registers with everything that stays, and where weights and buffers go."""

    registers: Registers
    weights: list[tuple[int, str]]
    buffers: list[tuple[int, str]]


class StageRunner:
    """Runs the blocks [start, stop) of both programs. Gradients add up over a round until commit or abort.

    Several rounds may be open: everything between a forward and its commit is kept by round.
    """

    def __init__(
        self, programs: ProgramPair, blocks: tuple[int, int], state: StageState, optimizer: Optimizer, seed: int,
        device: torch.device, carvers: tuple[Carver, Carver] | None = None, *, recompute: bool = False,
        late_weights: bool = False, staleness: int = 0, first: int = 0,
    ) -> None:  # fmt: skip
        """`first` is the round that comes next, `staleness` the steps that its gradients may be late."""
        self.device, self.seed, self.late_weights = device, seed, late_weights
        self.train, self.eval = programs.train, programs.eval
        train, evaluate = carvers or (Carver(self.train), Carver(self.eval))
        self.piece = train.piece(*self.train.block_range(*blocks))
        self.eval_piece = evaluate.piece(*self.eval.block_range(*blocks))
        self.recompute = recompute and self.has_backward
        keep = {*self.piece.sends, *self.piece.outputs, *(self.train.updates[i].value for i in self.piece.updates)}
        self._leaks = leaks(self.train, device)
        self._execution = execution_named(self.train.kernels)(self.train, self.piece.nodes, keep, device)
        self._eval_execution = execution_named(self.eval.kernels)(
            self.eval, self.eval_piece.nodes, {*self.eval_piece.sends, *self.eval_piece.outputs}, device
        )
        trainable = {s.name for s in self.train.sources if s.trainable}
        self.parameters: StageWeights = {
            n: t.detach().to(device).clone().requires_grad_(n in trainable) for n, t in state.parameters.items()
        }
        optimized, previous = parted(state.optimizer)
        self.versions: WeightVersions = (
            OneStepLate(self.parameters, previous, first) if staleness else OneVersion(self.parameters)
        )
        buffers = {n: t.detach().to(device).clone() for n, t in state.buffers.items()}
        self.running = RunningBuffers(self.train, self.piece.updates, buffers)
        self.trainable = [n for n in self.parameters if n in trainable]
        self.optimizer = StageOptimizer(optimizer, {n: self.parameters[n] for n in self.trainable})
        if optimized:
            self.optimizer.load({k: t.to(device) for k, t in optimized.items()})
        self._open: set[int] = set()  # rounds
        self._stashes: dict[_MicroBatch, Stash] = {}
        self._kept: dict[_MicroBatch, Kept] = {}
        self._owed: dict[_MicroBatch, list[Owed]] = {}
        self._templated = self.parameters
        self._templates: dict[str, _Template] = {p.mode: self._template(p) for p in (self.train, self.eval)}

    @property
    def has_backward(self) -> bool:
        """Whether its backward has anything to do."""
        return has_backward(self.train, self.piece)

    @property
    def can_put_off(self) -> bool:
        """Whether there are weight gradients that can wait."""
        return self._execution.can_wait

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers as of the last commit."""
        return self.running.values

    def _template(self, program: Program) -> _Template:
        registers = empty_registers(program)
        weights, buffers = [], []
        for source in program.sources:
            if source.kind == "parameter":
                registers[source.id] = self.parameters.get(source.name)
                if source.name in self.parameters:
                    weights.append((source.id, source.name))
            elif source.name in self.buffers:
                buffers.append((source.id, source.name))
            elif source.data is not None:
                registers[source.id] = constant_tensor(program, source.id, source.data).to(self.device)
        return _Template(registers, weights, buffers)

    def _registers(self, mode: str, weights: StageWeights, given: Mapping[int, torch.Tensor]) -> Registers:
        template = self._templates[mode]
        registers = template.registers.copy()
        if weights is not self._templated:
            for number, name in template.weights:
                registers[number] = weights[name]
        for number, tensor in given.items():
            registers[number] = tensor
        return registers

    def _read_buffers(self, mode: str, round: int | None = None) -> dict[int, torch.Tensor]:
        return {number: self.running.read(name, round) for number, name in self._templates[mode].buffers}

    def forward(
        self, rows: Rows, feeds: Mapping[int, torch.Tensor], received: Mapping[int, torch.Tensor], scale: float
    ) -> dict[int, torch.Tensor]:
        """The values later stages need. `scale` is the rows' part of the round's loss weight."""
        key = rows.round, rows.micro_batch
        self._open.add(rows.round)
        buffers = self._read_buffers("train", rows.round)
        stash, registers = self._run(rows, self.versions.for_forward(*key), feeds, received, buffers, scale)
        self.running.note(rows.round, rows.micro_batch, rows.count, registers)
        if self.recompute:
            loss = None if stash.loss is None else stash.loss.detach()
            self._kept[key] = Kept(rows, dict(feeds), dict(received), buffers, loss, scale)
        else:
            self._stashes[key] = stash
        return {v: registers[v].detach() for v in self.piece.sends}

    def _run(
        self, rows: Rows, weights: StageWeights, feeds: Mapping[int, torch.Tensor],
        received: Mapping[int, torch.Tensor], buffers: Mapping[int, torch.Tensor], scale: float,
    ) -> tuple[Stash, Registers]:  # fmt: skip
        arriving: dict[int, torch.Tensor | None] = {}
        tapped: dict[int, torch.Tensor] = {}
        given = {**buffers, **feeds}
        for value, tensor in received.items():
            if value in self._leaks:
                tensor = tensor.contiguous()
            given[value] = tensor
            if self.train.values[value].requires_grad:
                arriving[value] = None
                tapped[value] = Tap.apply(tensor.detach().requires_grad_(True), arriving, value)  # type: ignore[no-untyped-call]
                given[value] = tapped[value]
        registers = self._registers("train", weights, given)
        draw = Draw(self.seed, rows.round, rows.micro_batch, rows.start)
        owed: list[Owed] = []
        self._execution.forward(registers, Context(rows.count, draw, self.device, owed if self.late_weights else None))
        sent = {v: registers[v] for v in self.piece.sends if registers[v].requires_grad}
        loss = registers[self.piece.outputs[0]] if self.piece.outputs else None
        if loss is not None and scale == 0:  # no row counts (all padding): a mean over nothing is NaN
            loss = torch.zeros_like(loss)
        return Stash(arriving, tapped, sent, loss, scale, owed), registers

    def loss(self, round: int, micro_batch: int) -> float | None:
        """The loss of a micro-batch not yet run backward, at the last stage."""
        held: Stash | Kept = (self._kept if self.recompute else self._stashes)[round, micro_batch]
        return None if held.loss is None else float(held.loss.detach())

    def backward(
        self, round: int, micro_batch: int, gradients: Mapping[int, torch.Tensor | None],
        noted: Callable[[str], None] | None = None,
    ) -> dict[int, torch.Tensor | None]:  # fmt: skip
        """The gradients of what was received; the parameters' are added up, and `noted` is told of each that is.

        With late weights, most of the parameters' follow when `weights` is called.
        """
        weights = self.versions.for_backward(round, micro_batch)
        if self.recompute:
            kept = self._kept.pop((round, micro_batch))
            stash, _ = self._run(kept.rows, weights, kept.given, kept.received, kept.buffers, kept.scale)
        else:
            stash = self._stashes.pop((round, micro_batch))
        roots: list[torch.Tensor] = []
        seeds: list[torch.Tensor] = []
        for value, tensor in (*stash.sent.items(), *stash.tapped.items()):  # a root's gradient is added first
            gradient = gradients.get(value)
            if gradient is not None:
                roots.append(tensor)
                seeds.append(gradient)
        if stash.loss is not None and stash.loss.requires_grad:
            roots.append(stash.loss)
            seeds.append(torch.full_like(stash.loss, stash.scale))
        if roots:
            with self._noting(weights, noted):
                self._execution.backward(roots, seeds)
        self._owed[round, micro_batch] = stash.owed
        return stash.arriving

    def owed_bytes(self, round: int, micro_batch: int) -> int:
        """Bytes that are kept for the weight gradients of a micro-batch."""
        return owed_bytes(self._owed[round, micro_batch])

    def weights(self, round: int, micro_batch: int) -> None:
        """Adds the weight gradients that the backward of a micro-batch has left owed."""
        self._execution.weights(self._owed.pop((round, micro_batch)))

    @contextlib.contextmanager
    def _noting(self, weights: StageWeights, noted: Callable[[str], None] | None) -> Iterator[None]:
        """Has somebody told of every parameter whose gradient a backward pass has added to."""
        if noted is None:
            yield
            return
        hooks = [
            weights[name].register_post_accumulate_grad_hook(lambda _, name=name: noted(name))
            for name in self.trainable
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def gradients(self, round: int) -> dict[str, torch.Tensor | None]:
        """What this device's micro-batches of a round have added up to."""
        weights = self.versions.for_step(round)
        return {n: weights[n].grad for n in self.trainable}

    def set_gradients(self, round: int, summed: Mapping[str, torch.Tensor | None]) -> None:
        """Replaces gradients by their sum over everybody who holds the parameter."""
        weights = self.versions.for_step(round)
        for name, gradient in summed.items():
            weights[name].grad = gradient

    def squared_norms(self, round: int, names: Iterable[str]) -> dict[str, float]:
        weights = self.versions.for_step(round)
        return {n: squared_norm(g) for n in names if (g := weights[n].grad) is not None}

    def commit(self, round: int, lr_scale: float, clip: float) -> None:
        """One optimizer step, and the buffers of the round become the buffers."""
        stepped = self.versions.begin_step(round)
        if clip != 1.0:
            for name, gradient in self.gradients(round).items():
                stepped[name].grad = None if gradient is None else gradient * clip
        self.optimizer.onto({n: stepped[n] for n in self.trainable})
        self._execution.step(self.optimizer, lr_scale)
        self.running.commit(round)
        self.abort(round)
        self.versions.publish(round)
        self.parameters = self.versions.newest

    def abort(self, round: int | None = None) -> None:
        """Forgets a round, or every open one: gradients, stashes, statistics."""
        rounds = {*self._open} if round is None else {round}
        self._open -= rounds
        for weights in (self.versions.for_step(r) for r in rounds):
            for name in self.trainable:
                weights[name].grad = None
        for kept in (self._stashes, self._kept, self._owed):
            for key in [key for key in kept if key[0] in rounds]:
                del kept[key]
        self.running.abort(*rounds)

    def evaluate(
        self, rows: int, feeds: Mapping[int, torch.Tensor], received: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """The evaluation program's values for later stages and, at the last stage, its outputs."""
        with torch.no_grad():
            registers = self._registers("eval", self.parameters, {**self._read_buffers("eval"), **feeds, **received})
            self._eval_execution.forward(registers, Context(rows, Draw(self.seed, 0, 0, 0), self.device))
        return {v: registers[v] for v in (*self.eval_piece.sends, *self.eval_piece.outputs)}

    def state(self) -> StageState:
        """The tensors of the stage as they are now."""
        newest = {n: t.detach() for n, t in self.parameters.items()}
        used = set(self.piece.parameters)  # of one that nothing uses, no version differs from another
        kept = {key: t for key, t in self.versions.kept().items() if key.rpartition("/")[0] in used}
        return StageState(newest, dict(self.buffers), {**self.optimizer.state(), **kept})
