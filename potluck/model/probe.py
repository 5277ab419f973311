"""Finds, by running the program on a few samples, along which axis each value holds samples and where samples meet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch

from potluck.model.carve import Carver
from potluck.model.interpret import Code, Context, Registers, torch_constant
from potluck.model.program import Node, Program, SizeTree, Tensor, inputs_of, shape_of, unpack_bytes
from potluck.model.randomness import Draw

_META = torch.device("meta")
_CPU = torch.device("cpu")


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
    code = Code(program, range(len(program.nodes)), program.values, _META)
    registers: Registers = [None] * code.size
    for source in program.sources:
        tensor = values[source.id]
        empty = torch.empty(shape_of(tensor, 4), dtype=torch_constant("dtype", tensor.dtype), device=_META)
        registers[source.id] = empty.requires_grad_(source.kind == "parameter" and source.trainable)
    code.run(registers, Context(4, Draw(0, 0, 0, 0), _META))
    for number, tensor in values.items():
        needs = registers[number] is not None and registers[number].requires_grad
        values[number] = msgspec.structs.replace(tensor, requires_grad=needs)
    return msgspec.structs.replace(program, values=values)


def constant_tensor(program: Program, number: int, data: str) -> torch.Tensor:
    """A constant that travelled with the program."""
    tensor = program.values[number]
    flat = torch.frombuffer(bytearray(unpack_bytes(data)) or bytearray(8), dtype=torch_constant("dtype", tensor.dtype))
    shape = shape_of(tensor, 1)
    return flat[: torch.Size(shape).numel()].reshape(shape)


class _Probe:
    """One run of all samples and two runs of half of them, in lock-step."""

    def __init__(self, program: Program, state: Mapping[str, torch.Tensor], feeds: Mapping[str, torch.Tensor]) -> None:
        self.program = program
        self.axes = {n: (t.batch_axis, t.batch_factor) for n, t in program.values.items()}
        self.rows = len(next(iter(feeds.values())))
        self.half = self.rows // 2
        self.spans = ((0, self.rows), (0, self.half), (self.half, self.rows))
        self.runs: list[Registers] = []
        for start, stop in self.spans:
            registers: Registers = [None] * (max(program.values) + 1)
            for s in program.sources:
                if s.kind == "input":
                    registers[s.id] = feeds[s.name][start:stop]
                elif s.data is not None:
                    registers[s.id] = constant_tensor(program, s.id, s.data)
                else:
                    registers[s.id] = state[s.name].detach()
            self.runs.append(registers)
        self.weighted = Carver(program).weighted
        self.taint: dict[int, frozenset[int]] = {}
        self.coupled: set[int] = set()

    def walk(self) -> None:
        with torch.no_grad():
            for position, node in enumerate(self.program.nodes):
                code = Code(self.program, [position], self.program.values, _CPU)
                for registers, (start, stop) in zip(self.runs, self.spans, strict=True):
                    code.run(registers, Context(stop - start, Draw(0, 0, 0, start), _CPU))
                inherited = frozenset().union(*(self.taint.get(v, frozenset()) for v in inputs_of(node)))
                for value in node.outputs:
                    if value >= 0:
                        self._judge(value, inherited | {position})

    def _judge(self, value: int, blame: frozenset[int]) -> None:
        """Compares what the halves made with the halves of what all samples made."""
        whole, *parts = (r[value] for r in self.runs)
        axis, factor = self.axes[value]
        if axis is None:
            if not all(_alike(whole, p) for p in parts):
                self.taint[value] = blame
            return
        expected = [whole.narrow(axis, a * factor, (b - a) * factor) for a, b in self.spans[1:]]
        if all(_alike(e, p) for e, p in zip(expected, parts, strict=True)):
            return
        if factor > 1:  # k·b entries, but not sample by sample
            self.axes[value] = (None, 1)
        if factor > 1 or value not in self.weighted:  # row numbers (arange(b)) rightly begin anew in each part
            self.taint[value] = blame
            return
        self.coupled |= blame
        for registers, part in zip(self.runs[1:], expected, strict=True):
            registers[value] = part

    def loss_is_separable(self, weights: torch.Tensor) -> bool:
        """Whether the loss of all samples is the weighted mean of the losses of parts of them."""
        whole, first, second = (r[self.program.outputs[0]].double() for r in self.runs)
        shares = [weights[a:b].sum() / weights.sum() for a, b in self.spans[1:]]
        parts = sum(s * p for s, p in zip(shares, (first, second), strict=True) if s > 0)
        return bool(torch.isclose(whole, torch.as_tensor(parts), rtol=1e-3, atol=1e-5, equal_nan=True))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    finite = a.isfinite()
    scale = float(a[finite].abs().max()) if finite.any() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3 * scale + 1e-30, equal_nan=True)


def probe(
    program: Program, state: Mapping[str, torch.Tensor], feeds: Mapping[str, torch.Tensor], weights: torch.Tensor
) -> Program:
    """The program with its batch axes proven and the nodes named in which samples meet."""
    for _ in range(4):  # dropout is drawn along an axis, so a disproven axis asks for another look
        run = _Probe(program, state, feeds)
        run.walk()
        changed = run.axes != {n: (t.batch_axis, t.batch_factor) for n, t in program.values.items()}
        values = {
            n: msgspec.structs.replace(t, batch_axis=run.axes[n][0], batch_factor=run.axes[n][1])
            for n, t in program.values.items()
        }
        program = msgspec.structs.replace(program, values=values)
        if not changed:
            break
    separable = program.mode == "eval" or run.loss_is_separable(weights)
    if not separable:
        run.coupled |= run.taint.get(program.outputs[0], frozenset())
    coupled = run.coupled | batch_norms(program)
    return msgspec.structs.replace(program, coupled=tuple(sorted(coupled)), separable_loss=separable)


def batch_norms(program: Program) -> set[int]:
    """Nodes known to mix samples by their operator alone."""
    return {i for i, n in enumerate(program.nodes) if n.op == "potluck.batch_norm" or _training_norm(n)}


def _training_norm(node: Node) -> bool:
    return node.op == "aten.batch_norm.default" and bool(node.args[5])
