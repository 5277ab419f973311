"""Which values of an exported graph share memory, and what each value changed in place became."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from potluck.program.operators import UNDECLARED_VIEWS, base_name


class Aliases:
    """Sets of graph nodes that may share memory, and the newest value of each value changed in place."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}
        self._newer: dict[int, int] = {}
        self._order: dict[fx.Node, tuple[int, ...]] = {}
        self._same: dict[fx.Node, fx.Node] = {}

    def number(self, graph: fx.Graph, after: fx.Node | None = None) -> None:
        """Remembers the order of a graph's nodes; an inlined body comes at its call."""
        prefix = self._order[after] if after is not None else ()
        for i, node in enumerate(graph.nodes):
            self._order[node] = (*prefix, i)

    def add(self, node: fx.Node, shares_with: Iterable[fx.Node] = ()) -> None:
        """A new node, in the memory of some others or of its own."""
        self._parent.setdefault(node, node)
        for other in shares_with:
            self._parent[self.root(node)] = self.root(other)

    def add_same(self, node: fx.Node, other: fx.Node) -> None:
        """A second name of one value: changing the one is changing the other."""
        self._same[node] = other
        self.add(node, (other,))

    def root(self, node: fx.Node) -> fx.Node:
        """The one node that stands for everything in the same memory; the first of them, where there is one first."""
        while self._parent.setdefault(node, node) is not node:
            node = self._parent[node]
        return node

    def current(self, value: int) -> int:
        """The value that holds what this one became."""
        while value in self._newer:
            value = self._newer[value]
        return value

    def replace(self, old: int, new: int) -> None:
        """From here on, whoever reads the old value gets the new one."""
        if old != new:
            self._newer[old] = new

    def used_later(self, changed: fx.Node, known: Iterable[fx.Node], at: fx.Node) -> fx.Node | None:
        """Another name of the memory `at` changes, beside those known, that is read afterwards."""
        root, moment = self.root(changed), self._order[at]
        bases = {self.base(n) for n in (changed, *known)}
        for node in self._parent:
            if self.root(node) is not root or self.base(node) in bases:
                continue
            if any(self._order.get(user, ()) > moment for user in node.users):
                return node
        return None

    def base(self, node: fx.Node) -> fx.Node:
        """The node whose value this one *is*: the result of x.add_(y) is x."""
        while True:
            if node in self._same:
                node = self._same[node]
            elif is_in_place(node.target) and isinstance(node.args[0], fx.Node):
                node = node.args[0]
            else:
                return node


def graph_node(value: object) -> fx.Node:
    """The value, known to be a graph node: torch.export passes tensors as nothing else."""
    if not isinstance(value, fx.Node):
        raise TypeError(f"{value!r} where torch.export should have passed a tensor")
    return value


def is_in_place(target: object) -> bool:
    """Whether an operator changes its first argument."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    first = target._schema.arguments[:1]
    return bool(first and first[0].alias_info is not None and first[0].alias_info.is_write)


def aliased_arguments(node: fx.Node) -> list[fx.Node]:
    """The arguments whose memory the results of a call may share."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return []
    name = base_name(str(target))
    if name in UNDECLARED_VIEWS:
        return list(node.all_input_nodes)
    if name == "to" and node.meta["val"].dtype != graph_node(node.args[0]).meta["val"].dtype:
        return []  # another element type needs other memory
    views = any(r.alias_info is not None for r in target._schema.returns)
    return [node.args[0]] if views and node.args and isinstance(node.args[0], fx.Node) else []
