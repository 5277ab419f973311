"""Whether a program that came from elsewhere is one: every complaint is an InputError, nothing is run to find out."""

from __future__ import annotations

import binascii
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from potluck.advice import said
from potluck.errors import InputError
from potluck.program.operators import OURS, allowed
from potluck.program.program import (
    FORMAT,
    Arg,
    Items,
    Named,
    Node,
    NonFinite,
    Program,
    ProgramPair,
    Ref,
    Size,
    SizeTree,
    Source,
    Tensor,
    evaluate_size,
    inputs_of,
    shape_of,
    unpack_bytes,
)
from potluck.types import ITEM_BYTES

DEEPEST = 32  # how deep a size or an argument may be nested: far deeper than exported ones, and recursion ends
LARGEST = 1 << 62  # of a size: twice it still fits 64 bits
MOST_TERMS = 256  # of one size: with these bounds every size is computed at once
MOST_AXES = 64  # of a tensor: torch has no more

_LAYOUTS = ("strided",)
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_TWO = ("floordiv", "mod", "truediv", "pow")
_OPERATIONS = ("add", "mul", "max", "min", *_TWO)

# Operators that change an argument or draw random numbers when all of these arguments are set.
_SIDE_EFFECTS = {
    "aten.batch_norm.default": ("running_mean", "training"),
    "aten.instance_norm.default": ("running_mean", "use_input_stats"),
    "aten.scaled_dot_product_attention.default": ("dropout_p",),
    "aten.lstm.input": ("dropout", "train"),
    "aten.gru.input": ("dropout", "train"),
    "aten.rnn_tanh.input": ("dropout", "train"),
    "aten.rnn_relu.input": ("dropout", "train"),
}
_POSITIONS = {"running_mean": 3, "training": 5, "use_input_stats": 5, "dropout_p": 4, "dropout": 5, "train": 6}


def check(programs: ProgramPair) -> None:
    """Refuses programs in which anything refers to what is not there, or that call what is not arithmetic."""
    if programs.train.mode != "train" or programs.eval.mode != "eval":
        _refuse("the two programs are not one for training and one for evaluation")
    for program in (programs.train, programs.eval, *((programs.judge,) if programs.judge else ())):
        try:
            _Checker(program).check()
        except InputError as error:
            what = f"program ({program.mode}): {said(error)}"
            raise InputError(f"{what}; it is damaged or was not made by potluck") from None
    if programs.train.block_count != programs.eval.block_count:
        _refuse("training and evaluation are cut into different numbers of blocks")
    if len(programs.train.outputs) != 1:
        _refuse(f"training gives {len(programs.train.outputs)} results, not one loss")
    if programs.judge is not None and (programs.judge.mode != "eval" or len(programs.judge.outputs) != 1):
        _refuse("what judges does not give one loss")


def _refuse(what: str) -> None:
    raise InputError(f"program: {what}; it is damaged or was not made by potluck")


class _Checker:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.defined: set[int] = set()

    def check(self) -> None:
        program = self.program
        if set(program.values) != set(range(len(program.values))):
            raise InputError("values are not numbered from 0 on")
        for number, tensor in program.values.items():
            self._tensor(number, tensor)
        for source in program.sources:
            self._source(source)
        names = Counter(s.name for s in program.sources if s.kind in ("parameter", "buffer"))
        for name, times in names.items():
            if times > 1:
                raise InputError(f"source {name!r} appears {times} times")
        for position, node in enumerate(program.nodes):
            self._node(position, node)
        self._known(program.outputs, "an output")
        if program.output_names and len(program.output_names) != len(program.outputs):
            raise InputError("outputs and their names do not match")
        self._updates()
        self._positions(program.boundaries, 1, "boundaries")
        self._positions(program.coupled, 0, "coupled nodes")

    def _tensor(self, number: int, tensor: Tensor) -> None:
        if tensor.dtype not in ITEM_BYTES:
            raise InputError(f"value {number} has the unknown element type {tensor.dtype!r}")
        if len(tensor.shape) > MOST_AXES:
            raise InputError(f"value {number} has {len(tensor.shape)} axes")
        for tree in tensor.shape:
            for size in self._sizes(tree):
                if size < 0 or size != int(size):
                    raise InputError(f"value {number} has a size of {size}")
        if tensor.batch_axis is not None and not 0 <= tensor.batch_axis < len(tensor.shape):
            raise InputError(f"value {number} has no axis {tensor.batch_axis}")
        if tensor.batch_factor < 1:
            raise InputError(f"value {number} has {tensor.batch_factor} entries per sample")

    def _sizes(self, tree: Any) -> list[int | float]:
        """The size for a few numbers of rows."""
        _check_tree(tree, DEEPEST)
        sizes: list[int | float] = []
        for rows in (1, 2, 4):
            try:
                sizes.append(evaluate_size(tree, rows))
            except (ArithmeticError, ValueError):
                sizes.append(math.nan)
        if not all(-LARGEST < size < LARGEST for size in sizes):  # also refuses NaN
            raise InputError("a size cannot be computed")
        return sizes

    def _source(self, source: Source) -> None:
        self._define(source.id, f"source {source.name!r}")
        if (source.kind == "constant") != (source.data is not None):
            raise InputError(f"source {source.name!r}: only a constant brings its data")
        if source.data is None:
            return
        tensor = self.program.values[source.id]
        try:
            found = len(unpack_bytes(source.data))
        except (binascii.Error, ValueError):
            raise InputError(f"constant {source.name!r} is not base64") from None
        expected = math.prod(shape_of(tensor, 1)) * ITEM_BYTES[tensor.dtype]
        if found != expected:
            raise InputError(f"constant {source.name!r} has {found} bytes instead of {expected}")

    def _node(self, position: int, node: Node) -> None:
        where = f"node {position} ({node.op})"
        if not allowed(node.op):
            raise InputError(f"{where} is not on the list of tensor operators")
        names = _SIDE_EFFECTS.get(node.op)
        if names is not None and all(_given(node, n) not in (None, False, 0) for n in names):
            raise InputError(f"{where} changes an argument or draws random numbers")
        for arg in (*node.args, *node.kwargs.values()):
            self._arg(arg, where, DEEPEST)
        self._known(inputs_of(node), where)
        if node.op in OURS and (len(node.args) != OURS[node.op] or node.kwargs or not isinstance(node.args[0], Ref)):
            raise InputError(f"{where} has the wrong arguments")
        if not node.tuple_output and len(node.outputs) != 1:
            raise InputError(f"{where} gives {len(node.outputs)} results")
        for value in node.outputs:
            if value != -1 or not node.tuple_output:
                self._define(value, where)

    def _arg(self, arg: Arg, where: str, depth: int) -> None:
        match arg:
            case Items(items=items):
                if depth == 0:
                    raise InputError(f"{where} has arguments nested deeper than {DEEPEST}")
                for item in items:
                    self._arg(item, where, depth - 1)
            case Size(tree=tree):
                self._sizes(tree)
            case NonFinite(text=text) if text not in ("inf", "-inf", "nan"):
                raise InputError(f"{where} has the number {text!r}")
            case Named(kind=kind, name=name):
                known: Iterable[str] = {"dtype": ITEM_BYTES, "layout": _LAYOUTS}.get(kind, _MEMORY_FORMATS)
                if name not in known:
                    raise InputError(f"{where} names the {kind} {name!r}")

    def _define(self, value: int, where: str) -> None:
        if value not in self.program.values:
            raise InputError(f"{where} gives value {value}, which is not described")
        if value in self.defined:
            raise InputError(f"{where} gives value {value} a second time")
        self.defined.add(value)

    def _known(self, values: Iterable[int], where: str) -> None:
        for value in values:
            if value not in self.defined:
                raise InputError(f"{where} needs value {value} before it is there")

    def _updates(self) -> None:
        buffers = {s.name for s in self.program.sources if s.kind == "buffer"}
        made = {o for n in self.program.nodes for o in n.outputs if o >= 0}
        for update in self.program.updates:
            if update.buffer not in buffers:
                raise InputError(f"it updates {update.buffer!r}, which is not a buffer")
            if update.kind == "count":
                if update.value != -1:
                    raise InputError(f"the count {update.buffer!r} has a value")
            elif update.value not in made:
                raise InputError(f"the update of {update.buffer!r} needs value {update.value}, which no node gives")

    def _positions(self, positions: tuple[int, ...], first: int, what: str) -> None:
        if list(positions) != sorted(set(positions)) or any(
            not first <= p < len(self.program.nodes) for p in positions
        ):
            raise InputError(f"{what} are not in order or not in the program")


def _given(node: Node, name: str) -> Arg:
    position = _POSITIONS[name]
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _check_tree(tree: SizeTree | Any, depth: int) -> int:
    """Refuses anything but numbers, "b" and a few of the known operations on them; returns how many terms it has."""
    if isinstance(tree, bool):
        raise InputError("a size is true or false")
    if isinstance(tree, int | float):
        if not -LARGEST < tree < LARGEST:
            raise InputError("a size has a number in it that is too large")
        return 1
    if isinstance(tree, str):
        if tree != "b":
            raise InputError(f"a size depends on {tree!r}")
        return 1
    if not isinstance(tree, list) or depth == 0:
        raise InputError(f"a size is nested deeper than {DEEPEST}, or is no size")
    name, *terms = tree or [None]
    if not isinstance(name, str) or name not in _OPERATIONS:
        raise InputError(f"unknown size operation {name!r}; made by a newer potluck?")
    if len(terms) != 2 if name in _TWO else not terms:
        raise InputError(f"the size operation {name} has {len(terms)} terms")
    count = 1
    for term in terms:
        count += _check_tree(term, depth - 1)
        if count > MOST_TERMS:
            raise InputError(f"a size has more than {MOST_TERMS} terms")
    return count


def decode(data: bytes) -> ProgramPair:
    """The programs of a JSON form; refuses anything that is not one, or that could not be run as one."""
    try:
        programs = msgspec.json.decode(data, type=ProgramPair)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"program: not a potluck program of format {FORMAT}: {said(error)}") from None
    check(programs)
    return programs
