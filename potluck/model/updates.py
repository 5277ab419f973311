"""Buffers that a training forward changes, as explicit results of the program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from potluck.errors import ModelError
from potluck.program.program import Node, Ref, Update, inputs_of

if TYPE_CHECKING:
    from potluck.model.export import Writer


def find_updates(writer: Writer, results: tuple[int, ...]) -> None:
    """Adds an update for every buffer the forward replaced; counters become counts, which can be folded."""
    statistics = {u.buffer for u in writer.updates}
    made = {o: n for n in writer.nodes for o in n.outputs}
    reads = Counter(v for n in writer.nodes for v in inputs_of(n)) + Counter(results)
    persistent = {s.id for s in writer.sources if s.kind == "buffer"}
    for first, name in writer.buffers.items():
        last = writer.aliases.current(first)
        if last == first and not (name in statistics and first not in persistent):
            continue
        where = made[last].source if last in made else "the model"
        if first not in persistent:
            raise ModelError(
                f"{where}: the forward pass changes the buffer {name}, which is not saved with the model; "
                "register it with persistent=True"
            )
        if name in statistics:
            raise ModelError(f"{where}: the running statistics {name} are changed outside BatchNorm; keep them apart")
        counted = _count(first, last, made, reads, writer.values[first].dtype)
        if counted is None:
            writer.updates.append(Update(buffer=name, kind="value", value=last))
        else:
            steps, amount = counted
            writer.nodes = [n for n in writer.nodes if n not in steps]
            writer.updates.append(Update(buffer=name, kind="count", amount=amount))


def _count(
    first: int, last: int, made: dict[int, Node], reads: Counter[int], dtype: str
) -> tuple[list[Node], float] | None:
    """The additions of numbers that are all that happens to a buffer, and their sum; None if more happens."""
    steps: list[Node] = []
    amount = 0.0
    value = last
    while value != first:
        node = made[value]
        if node.op != "aten.add.Tensor" or node.kwargs or len(node.args) != 2 or not isinstance(node.args[0], Ref):
            return None
        number = node.args[1]
        if isinstance(number, bool) or not isinstance(number, int | float) or reads[value] != (value != last):
            return None
        steps.append(node)
        amount += number
        value = node.args[0].id
    if reads[first] != 1 or (len(steps) > 1 and "int" not in dtype):  # a sum of floats would round differently
        return None
    return steps, amount
