"""The exported model as data: a flat list of tensor operators that can be read, diffed, hashed and sent.

A program holds no weights. Devices receive it once; a plan is only cut positions in it.
"""

from __future__ import annotations

import base64
import hashlib
import math
from typing import Any, Final, Literal

import msgspec

from potluck.errors import InputError
from potluck.types import Value

FORMAT: Final = 1  # one more whenever programs of before cannot be read any more


# A size is an integer, or an expression of the batch size "b": ["mul", 36, "b"].
SizeTree = int | float | str | list[Any]


class Ref(msgspec.Struct, frozen=True, tag="ref"):
    """A value made elsewhere in the program."""

    id: int


class Size(msgspec.Struct, frozen=True, tag="size"):
    """A number that follows from the rows at hand: every stage derives it from its own inputs."""

    tree: SizeTree


class NonFinite(msgspec.Struct, frozen=True, tag="float"):
    """±inf or NaN, which JSON cannot say (msgspec would write null)."""

    text: str


class Named(msgspec.Struct, frozen=True, tag="torch"):
    """A constant of torch: a dtype, layout or memory format."""

    kind: Literal["dtype", "layout", "memory_format"]
    name: str


class Here(msgspec.Struct, frozen=True, tag="here"):
    """The device that runs the node."""


class Items(msgspec.Struct, frozen=True, tag="list"):
    """A list of arguments."""

    items: tuple[Arg, ...]


Arg = Ref | Size | NonFinite | Named | Here | Items | bool | int | float | str | None


class Node(Value, frozen=True, kw_only=True):
    """One operator call."""

    op: str  # "aten.relu.default", or one of ours: "potluck.dropout"
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg] = {}
    outputs: tuple[int, ...]  # -1: not used
    source: str = ""  # "file:line" of the user's code
    module: str = ""  # path of the nn.Module it came from
    no_grad: bool = False
    tuple_output: bool = False


class Tensor(Value, frozen=True, kw_only=True):
    """What is known of a value: sizes as trees, element type, and its batch axis if it has one."""

    shape: tuple[SizeTree, ...]
    dtype: str
    requires_grad: bool = False
    batch_axis: int | None = None
    batch_factor: int = 1  # k: the batch axis has k·b entries, sample-major


class Source(Value, frozen=True, kw_only=True):
    """A value the program is given: an input, parameter, buffer or constant."""

    kind: Literal["input", "parameter", "buffer", "constant"]
    name: str
    id: int
    trainable: bool = False
    persistent: bool = True
    updated: bool = False  # a buffer that the training forward changes: it lives in one block
    data: str | None = None  # constants and non-persistent buffers travel with the program


class Update(Value, frozen=True, kw_only=True):
    """A buffer that the training forward changes.

    mean, variance: running ← momentum · statistic + (1 − momentum) · running, one statistic per micro-batch.
    count: running ← running + increment, per micro-batch. value: any other new value; cannot be shared.
    """

    buffer: str
    kind: Literal["mean", "variance", "count", "value"]
    value: int = -1
    amount: float = 0.0  # mean, variance: momentum; count: increment


class Program(Value, frozen=True, kw_only=True):
    """One flat program, for training (gives the loss) or for evaluation (gives the outputs)."""

    mode: Literal["train", "eval"]
    sources: tuple[Source, ...]
    nodes: tuple[Node, ...]
    values: dict[int, Tensor]
    outputs: tuple[int, ...]
    output_names: tuple[str, ...] = ()  # of an evaluation: "" for a lone tensor, positions of a tuple, keys of a dict
    updates: tuple[Update, ...] = ()
    boundaries: tuple[int, ...] = ()  # node positions at which blocks begin, without 0; block i is [b[i-1], b[i])
    coupled: tuple[int, ...] = ()  # nodes in which samples meet
    separable_loss: bool = True
    kernels: str = "quick"  # the way to execute it: "quick" kernels for the same function, or those of "torch" itself

    def block_range(self, start: int, stop: int) -> tuple[int, int]:
        """Node positions of blocks [start, stop)."""
        edges = (0, *self.boundaries, len(self.nodes))
        return edges[start], edges[stop]

    @property
    def block_count(self) -> int:
        """How many blocks it is cut into."""
        return len(self.boundaries) + 1


class ProgramPair(Value, frozen=True, kw_only=True):
    """Training and evaluation programs with the same parameters, cut at the same places."""

    train: Program
    eval: Program
    aliases: dict[str, str] = {}  # second names of tied parameters and buffers → the name in the programs
    torch_version: str = ""
    format: Literal[1] = FORMAT
    judge: Program | None = None  # the loss in evaluation, uncut: for devices that judge by samples of their own

    def with_kernels(self, kernels: str) -> ProgramPair:
        """The same programs, executed in another way."""
        train, evaluation = (msgspec.structs.replace(p, kernels=kernels) for p in (self.train, self.eval))
        judge = self.judge and msgspec.structs.replace(self.judge, kernels=kernels)
        return msgspec.structs.replace(self, train=train, eval=evaluation, judge=judge)

    def digest(self) -> str:
        """What tells these programs from others, on every device."""
        return hashlib.sha256(encode(self)).hexdigest()


def encode(programs: ProgramPair) -> bytes:
    return msgspec.json.encode(programs)


def evaluate_size(tree: SizeTree, b: int) -> int | float:
    """The size of a tree when the batch has b rows."""
    if isinstance(tree, str):
        return b
    if not isinstance(tree, list):
        return tree
    name, *rest = tree
    terms = [evaluate_size(t, b) for t in rest]
    match name:
        case "add":
            return sum(terms)
        case "mul":
            return math.prod(terms)
        case "floordiv":
            return terms[0] // terms[1]
        case "mod":
            return terms[0] % terms[1]
        case "truediv":
            return terms[0] / terms[1]
        case "pow":
            power = math.pow(terms[0], terms[1])
            return int(power) if all(isinstance(t, int) for t in terms) and power.is_integer() else power
        case "max":
            return max(terms)
        case "min":
            return min(terms)
    raise InputError(f"program: unknown size operation {name!r}; made by a newer potluck?")


def shape_of(tensor: Tensor, b: int) -> tuple[int, ...]:
    """The shape of a value when the batch has b rows."""
    return tuple(int(evaluate_size(s, b)) for s in tensor.shape)


def pack_bytes(raw: bytes) -> str:
    """Bytes as JSON can hold them."""
    return base64.b64encode(raw).decode()


def unpack_bytes(text: str) -> bytes:
    """The bytes of `pack_bytes`."""
    return base64.b64decode(text, validate=True)


def refs(arg: Arg | tuple[Arg, ...]) -> list[int]:
    """Ids of the values an argument refers to, in order."""
    if isinstance(arg, Ref):
        return [arg.id]
    if isinstance(arg, Items):
        return [i for a in arg.items for i in refs(a)]
    if isinstance(arg, tuple):
        return [i for a in arg for i in refs(a)]
    return []


def inputs_of(node: Node) -> list[int]:
    """Ids of the values a node reads, in order."""
    return refs(node.args) + [i for a in node.kwargs.values() for i in refs(a)]
