"""One device's blocks: weights, buffers and optimizer, and the forward and backward of one micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from potluck.compute.constants import constant_tensor
from potluck.compute.interpret import Code, Context, Registers
from potluck.compute.kernels import leaks
from potluck.compute.late_weights import Owed, owed_bytes, pay
from potluck.compute.norms import squared_norm
from potluck.compute.randomness import Draw
from potluck.compute.running_buffers import RunningBuffers
from potluck.compute.stage_optimizer import StageOptimizer
from potluck.job.optimizers import Optimizer
from potluck.program.carve import Carver, has_backward
from potluck.program.program import Program, ProgramPair


@dataclass
class Kept:
    """What a recomputing stage keeps of a micro-batch: enough to run its forward again, to the same bits."""

    rows: Rows
    given: dict[int, torch.Tensor]
    received: dict[int, torch.Tensor]
    buffers: dict[int, torch.Tensor]  # as they were
    loss: torch.Tensor | None
    scale: float


@dataclass
class Stash:
    """What one micro-batch leaves behind between its forward and its backward."""

    arriving: dict[int, torch.Tensor | None]  # gradients of what was received, once the backward has run
    tapped: dict[int, torch.Tensor]  # what was received, where its gradient adds up
    sent: dict[int, torch.Tensor]  # what a gradient comes back for
    loss: torch.Tensor | None
    scale: float
    owed: list[Owed]  # weight gradients that the backward has put off


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
        """Size of all tensors."""
        return sum(t.nbytes for part in (self.parameters, self.buffers, self.optimizer) for t in part.values())


class _Tap(torch.autograd.Function):
    """Identity on a received value that keeps its gradient as it comes.

    A leaf's `.grad` would be copied into the leaf's memory order, and another order means other sums downstream.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keep: dict[int, torch.Tensor | None], value: int) -> torch.Tensor:
        ctx.keep, ctx.value = keep, value
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None, None]:
        ctx.keep[ctx.value] = gradients[0]
        return None, None, None


class StageRunner:
    """Runs the blocks [start, stop) of both programs. Gradients add up over a round until commit or abort."""

    def __init__(
        self, programs: ProgramPair, blocks: tuple[int, int], state: StageState, optimizer: Optimizer, seed: int,
        device: torch.device, carvers: tuple[Carver, Carver] | None = None, *, recompute: bool = False,
        late_weights: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.seed, self.late_weights = device, seed, late_weights
        self.train, self.eval = programs.train, programs.eval
        train, evaluate = carvers or (Carver(self.train), Carver(self.eval))
        self.piece = train.piece(*self.train.block_range(*blocks))
        self.eval_piece = evaluate.piece(*self.eval.block_range(*blocks))
        self.recompute = recompute and self.has_backward
        keep = {*self.piece.sends, *self.piece.outputs, *(self.train.updates[i].value for i in self.piece.updates)}
        self._leaks = leaks(self.train, device)
        self._code = Code(self.train, self.piece.nodes, keep, device)
        self._eval_code = Code(
            self.eval, self.eval_piece.nodes, {*self.eval_piece.sends, *self.eval_piece.outputs}, device
        )
        trainable = {s.name for s in self.train.sources if s.trainable}
        self.parameters = {
            n: t.detach().to(device).clone().requires_grad_(n in trainable) for n, t in state.parameters.items()
        }
        buffers = {n: t.detach().to(device).clone() for n, t in state.buffers.items()}
        self.running = RunningBuffers(self.train, self.piece.updates, buffers)
        self.trainable = [n for n in self.parameters if n in trainable]
        self.optimizer = StageOptimizer(optimizer, {n: self.parameters[n] for n in self.trainable})
        if state.optimizer:
            self.optimizer.load({k: t.to(device) for k, t in state.optimizer.items()})
        self._stashes: dict[int, Stash] = {}
        self._kept: dict[int, Kept] = {}
        self._owed: dict[int, list[Owed]] = {}
        codes = ((self.train, self._code), (self.eval, self._eval_code))
        self._templates: dict[str, tuple[Registers, list[tuple[int, str]]]] = {
            program.mode: self._template(program, code) for program, code in codes
        }

    @property
    def has_backward(self) -> bool:
        """Whether its backward has anything to do."""
        return has_backward(self.train, self.piece)

    @property
    def can_put_off(self) -> bool:
        """Whether there are weight gradients that can wait."""
        return self._code.can_wait

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers as of the last commit."""
        return self.running.values

    def _template(self, program: Program, code: Code) -> tuple[Registers, list[tuple[int, str]]]:
        """Registers with everything that stays, and where the buffers go."""
        registers: Registers = [None] * code.size
        places = []
        for source in program.sources:
            if source.kind == "parameter":
                registers[source.id] = self.parameters.get(source.name)
            elif source.name in self.buffers:
                places.append((source.id, source.name))
            elif source.data is not None:
                registers[source.id] = constant_tensor(program, source.id, source.data).to(self.device)
        return registers, places

    def _registers(self, mode: str, given: Mapping[int, torch.Tensor]) -> Registers:
        template, _ = self._templates[mode]
        registers = template.copy()
        for number, tensor in given.items():
            registers[number] = tensor
        return registers

    def _read_buffers(self, mode: str) -> dict[int, torch.Tensor]:
        return {number: self.running.read(name) for number, name in self._templates[mode][1]}

    def forward(
        self, rows: Rows, feeds: Mapping[int, torch.Tensor], received: Mapping[int, torch.Tensor], scale: float
    ) -> dict[int, torch.Tensor]:
        """The values later stages need. `scale` is the rows' part of the round's loss weight."""
        buffers = self._read_buffers("train")
        stash, registers = self._run(rows, feeds, received, buffers, scale)
        self.running.note(rows.micro_batch, rows.count, registers)
        if self.recompute:
            loss = None if stash.loss is None else stash.loss.detach()
            self._kept[rows.micro_batch] = Kept(rows, dict(feeds), dict(received), buffers, loss, scale)
        else:
            self._stashes[rows.micro_batch] = stash
        return {v: registers[v].detach() for v in self.piece.sends}

    def _run(
        self, rows: Rows, feeds: Mapping[int, torch.Tensor], received: Mapping[int, torch.Tensor],
        buffers: Mapping[int, torch.Tensor], scale: float,
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
                tapped[value] = _Tap.apply(tensor.detach().requires_grad_(True), arriving, value)  # type: ignore[no-untyped-call]
                given[value] = tapped[value]
        registers = self._registers("train", given)
        draw = Draw(self.seed, rows.round, rows.micro_batch, rows.start)
        owed: list[Owed] = []
        self._code.run(registers, Context(rows.count, draw, self.device, owed if self.late_weights else None))
        sent = {v: registers[v] for v in self.piece.sends if registers[v].requires_grad}
        loss = registers[self.piece.outputs[0]] if self.piece.outputs else None
        if loss is not None and scale == 0:  # no row counts (all padding): a mean over nothing is NaN
            loss = torch.zeros_like(loss)
        return Stash(arriving, tapped, sent, loss, scale, owed), registers

    def loss(self, micro_batch: int) -> float | None:
        """The loss of a micro-batch not yet run backward, at the last stage."""
        held: Stash | Kept = self._kept[micro_batch] if self.recompute else self._stashes[micro_batch]
        return None if held.loss is None else float(held.loss.detach())

    def backward(
        self, micro_batch: int, gradients: Mapping[int, torch.Tensor | None],
        noted: Callable[[str], None] | None = None,
    ) -> dict[int, torch.Tensor | None]:  # fmt: skip
        """The gradients of what was received; the parameters' are added up, and `noted` is told of each that is.

        With late weights, most of the parameters' follow when `weights` is called.
        """
        if self.recompute:
            kept = self._kept.pop(micro_batch)
            stash, _ = self._run(kept.rows, kept.given, kept.received, kept.buffers, kept.scale)
        else:
            stash = self._stashes.pop(micro_batch)
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
            with self._noting(noted):
                torch.autograd.backward(roots, seeds)
        self._owed[micro_batch] = stash.owed
        return stash.arriving

    def owed_bytes(self, micro_batch: int) -> int:
        """Bytes that are kept for the weight gradients of a micro-batch."""
        return owed_bytes(self._owed[micro_batch])

    def weights(self, micro_batch: int) -> None:
        """Adds the weight gradients that the backward of a micro-batch has left owed."""
        pay(self._owed.pop(micro_batch))

    @contextlib.contextmanager
    def _noting(self, noted: Callable[[str], None] | None) -> Iterator[None]:
        """Has somebody told of every parameter whose gradient a backward pass has added to."""
        if noted is None:
            yield
            return
        hooks = [
            self.parameters[name].register_post_accumulate_grad_hook(lambda _, name=name: noted(name))
            for name in self.trainable
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """What this device's micro-batches have added up to."""
        return {n: self.parameters[n].grad for n in self.trainable}

    def set_gradients(self, summed: Mapping[str, torch.Tensor | None]) -> None:
        """Replaces gradients by their sum over everybody who holds the parameter."""
        for name, gradient in summed.items():
            self.parameters[name].grad = gradient

    def squared_norms(self, names: Iterable[str]) -> dict[str, float]:
        """Squared norm of each gradient."""
        norms = {}
        for name in names:
            gradient = self.parameters[name].grad
            if gradient is not None:
                norms[name] = squared_norm(gradient)
        return norms

    def commit(self, lr_scale: float, clip: float) -> None:
        """One optimizer step, and the buffers of the round become the buffers."""
        if clip != 1.0:
            for name in self.trainable:
                gradient = self.parameters[name].grad
                if gradient is not None:
                    self.parameters[name].grad = gradient * clip
        self.optimizer.step(lr_scale)
        self.running.commit()
        self.abort()

    def abort(self) -> None:
        """Forgets the round: gradients, stashes, statistics."""
        for name in self.trainable:
            self.parameters[name].grad = None
        self._stashes.clear()
        self._kept.clear()
        self._owed.clear()
        self.running.abort()

    def evaluate(
        self, rows: int, feeds: Mapping[int, torch.Tensor], received: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """The evaluation program's values for later stages and, at the last stage, its outputs."""
        with torch.no_grad():
            registers = self._registers("eval", {**self._read_buffers("eval"), **feeds, **received})
            self._eval_code.run(registers, Context(rows, Draw(self.seed, 0, 0, 0), self.device))
        return {v: registers[v] for v in (*self.eval_piece.sends, *self.eval_piece.outputs)}

    def state(self) -> StageState:
        """The tensors of the stage as they are now."""
        return StageState(
            {n: t.detach() for n, t in self.parameters.items()}, dict(self.buffers), self.optimizer.state()
        )
