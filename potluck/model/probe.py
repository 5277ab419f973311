"""Finds, by running the program on a few samples, along which axis each value holds samples and where samples meet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch

from potluck.compute.constants import constant_tensor
from potluck.compute.execution.execution import Registers, empty_registers
from potluck.compute.execution.interpreter import Interpreter
from potluck.compute.our_operators import Context, torch_constant
from potluck.compute.randomness import Draw
from potluck.errors import ModelError
from potluck.program.carve import Carver
from potluck.program.program import Node, Program, SizeTree, Tensor, inputs_of, shape_of

_META = torch.device("meta")
_CPU = torch.device("cpu")
_ROWS = 4  # as many as in `model/build.py`, where values are real


def guess_axis(tensor: Tensor) -> tuple[int | None, int]:
    """The only axis whose size is b, or k·b, and k; (None, 1) where there is none or more than one."""
    found = [(i, f) for i, f in ((i, _factor(s)) for i, s in enumerate(tensor.shape)) if f != 0]
    if len(found) != 1 or found[0][1] < 0:
        return None, 1
    return found[0]


def _factor(size: SizeTree) -> int:
    """k of a size k·b; 0 if it does not depend on b; −1 if it does in another way."""
    if isinstance(size, int | float):
        return 0
    if size == "b":
        return 1
    if isinstance(size, list) and size[0] == "mul" and len(size) == 3 and "b" in size[1:]:
        other = size[2] if size[1] == "b" else size[1]
        return other if isinstance(other, int) else -1
    return -1


def annotate(program: Program) -> Program:
    """The program with guessed batch axes, and which values need a gradient (asked of torch, on the meta device)."""
    values = {}
    for number, tensor in program.values.items():
        axis, factor = guess_axis(tensor)
        values[number] = msgspec.structs.replace(tensor, batch_axis=axis, batch_factor=factor)
    program = msgspec.structs.replace(program, values=values)
    registers = empty_registers(program)
    for source in program.sources:
        tensor = values[source.id]
        empty = torch.empty(shape_of(tensor, _ROWS), dtype=torch_constant("dtype", tensor.dtype), device=_META)
        registers[source.id] = empty.requires_grad_(source.kind == "parameter" and source.trainable)
    for position, node in enumerate(program.nodes):
        try:
            one = Interpreter(program, [position], values, _META)
            one.forward(registers, Context(_ROWS, Draw(0, 0, 0, 0), _META))
        except NotImplementedError:
            raise ModelError(
                f"{node.source}: the size of the result of {node.op} depends on the values of the data; "
                "write it with masks (torch.where) and fixed sizes"
            ) from None
    for number, tensor in values.items():
        made = registers[number]
        _check_described(program, number, made)
        values[number] = msgspec.structs.replace(tensor, requires_grad=made is not None and made.requires_grad)
    return msgspec.structs.replace(program, values=values)


def _check_described(program: Program, number: int, made: torch.Tensor | None) -> None:
    """Refuses a program whose values are not what tracing said: then the rewrite would change the numbers."""
    tensor = program.values[number]
    if made is None or (made.dtype, tuple(made.shape)) == (getattr(torch, tensor.dtype), shape_of(tensor, _ROWS)):
        return
    node = next((n for n in program.nodes if number in n.outputs), None)
    raise ModelError(
        f"{node.source if node else 'the model'}: {node.op if node else 'an input'} gives {made.dtype} "
        f"{list(made.shape)} "
        f"where the model had {tensor.dtype} {list(shape_of(tensor, _ROWS))}; write this line another way"
    )


class _Probe:
    """One run of all samples and two runs of half of them, in lock-step."""

    def __init__(self, program: Program, state: Mapping[str, torch.Tensor], feeds: Mapping[str, torch.Tensor]) -> None:
        self.program = program
        self.axes = {n: (t.batch_axis, t.batch_factor) for n, t in program.values.items()}
        rows = len(next(iter(feeds.values())))
        self.spans = ((0, rows), (0, rows // 2), (rows // 2, rows))
        self.runs: list[Registers] = []
        given = {s.id: self._given(s.name, s.data, s.id, state) for s in program.sources if s.kind != "input"}
        for start, stop in self.spans:
            registers = empty_registers(program)
            for s in program.sources:
                registers[s.id] = feeds[s.name][start:stop] if s.kind == "input" else given[s.id]
            self.runs.append(registers)
        self.weighted = Carver(program).weighted
        self.taint: dict[int, frozenset[int]] = {}
        self.coupled: set[int] = batch_norms(program)

    def _given(self, name: str, data: str | None, number: int, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if data is not None:
            return constant_tensor(self.program, number, data)
        return _uneven(state[name].detach(), number)

    def walk(self) -> None:
        """Runs every node three times and judges what it gives."""
        known = batch_norms(self.program)
        with torch.no_grad():
            for position, node in enumerate(self.program.nodes):
                one = Interpreter(self.program, [position], self.program.values, _CPU)
                for registers, (start, stop) in zip(self.runs, self.spans, strict=True):
                    if position not in known or stop - start == self.spans[0][1]:
                        one.forward(registers, Context(stop - start, Draw(0, 0, 0, start), _CPU))
                inherited = frozenset().union(*(self.taint.get(v, frozenset()) for v in inputs_of(node)))
                for value in node.outputs:
                    if value >= 0 and position in known:
                        self._go_on_with_the_whole(value)
                    elif value >= 0:
                        self._judge(value, inherited | {position})

    def _expected(self, value: int) -> list[torch.Tensor]:
        """The halves of what all samples made."""
        whole = self.runs[0][value]
        axis, factor = self.axes[value]
        if axis is None:
            return [whole, whole]
        return [whole.narrow(axis, a * factor, (b - a) * factor) for a, b in self.spans[1:]]

    def _go_on_with_the_whole(self, value: int) -> None:
        for registers, part in zip(self.runs[1:], self._expected(value), strict=True):
            registers[value] = part

    def _judge(self, value: int, blame: frozenset[int]) -> None:
        """Compares what the halves made with the halves of what all samples made."""
        parts = [r[value] for r in self.runs[1:]]
        if all(_alike(e, p) for e, p in zip(self._expected(value), parts, strict=True)):
            self._go_on_with_the_whole(value)  # so that rounding does not add up, and each node is judged by itself
            return
        axis, factor = self.axes[value]
        if factor > 1:  # k·b entries, but not sample by sample
            self.axes[value] = (None, 1)
        if axis is None or factor > 1 or value not in self.weighted:
            self.taint[value] = blame  # not yet proof: row numbers (arange(b)) rightly begin anew in each part
            return
        self.coupled |= blame
        self._go_on_with_the_whole(value)

    def loss_is_separable(self, weights: torch.Tensor) -> bool:
        """Whether the loss of all samples is the weighted mean of the losses of parts of them."""
        if not weights.sum() > 0:
            return False
        losses = [r[self.program.outputs[0]] for r in self.runs]
        tolerance = max(1e-5, 8 * torch.finfo(losses[0].dtype).eps)
        whole, first, second = (loss.double() for loss in losses)
        shares = [weights[a:b].sum() / weights.sum() for a, b in self.spans[1:]]
        parts = sum(s * p for s, p in zip(shares, (first, second), strict=True) if s > 0)
        return bool(torch.isclose(whole, torch.as_tensor(parts), rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True))


def _uneven(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The tensor, or if all its entries are equal one with a little noise: what a zero hides must show."""
    if not tensor.dtype.is_floating_point or tensor.numel() < 2 or not bool((tensor == tensor.flatten()[0]).all()):
        return tensor
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return tensor + (0.1 * noise).abs().to(tensor.dtype)  # upwards only: a variance must stay positive


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    tolerance = max(1e-4, 8 * torch.finfo(a.dtype).eps)
    finite = a.isfinite()
    scale = float(a[finite].abs().max()) if finite.any() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale + 1e-30, equal_nan=True)


def probe(
    program: Program, state: Mapping[str, torch.Tensor], feeds: Mapping[str, torch.Tensor], weights: torch.Tensor
) -> Program:
    """The program with its batch axes proven and the nodes named in which samples meet."""
    for _ in range(4):  # dropout is drawn along an axis, so a disproven axis asks for another look
        run = _Probe(program, state, feeds)
        run.walk()
        changed = run.axes != {n: (t.batch_axis, t.batch_factor) for n, t in program.values.items()}
        program = _with_axes(program, run.axes)
        if not changed:
            break
    separable = program.mode == "eval" or run.loss_is_separable(weights)
    coupled = run.coupled if separable else run.coupled | run.taint.get(program.outputs[0], frozenset())
    return msgspec.structs.replace(program, coupled=tuple(sorted(coupled)), separable_loss=separable)


def _with_axes(program: Program, axes: Mapping[int, tuple[int | None, int]]) -> Program:
    values = {
        n: msgspec.structs.replace(t, batch_axis=axes[n][0], batch_factor=axes[n][1]) for n, t in program.values.items()
    }
    return msgspec.structs.replace(program, values=values)


def without_probe(program: Program) -> Program:
    """The program of a model without values: nothing can be proven, so it is taken for coupled wherever it might be."""
    axes = {n: (t.batch_axis, 1) if t.batch_factor == 1 else (None, 1) for n, t in program.values.items()}
    free = Carver(program).free_nodes
    coupled = tuple(i for i in range(len(program.nodes)) if i not in free)
    return msgspec.structs.replace(_with_axes(program, axes), coupled=coupled, separable_loss=program.mode == "eval")


def batch_norms(program: Program) -> set[int]:
    """Nodes known to mix samples by their operator alone."""
    return {i for i, n in enumerate(program.nodes) if n.op == "potluck.batch_norm" or _training_norm(n)}


def _training_norm(node: Node) -> bool:
    return node.op == "aten.batch_norm.default" and bool(node.args[5])
