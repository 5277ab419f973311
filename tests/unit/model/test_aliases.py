"""Which nodes of a hand-written graph share memory, and who would see a change."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from potluck.model.aliases import Aliases, aliased_arguments, graph_node, is_in_place

aten = torch.ops.aten


class Graph:
    """A graph whose nodes are written one after the other."""

    def __init__(self) -> None:
        self.graph, self.aliases = fx.Graph(), Aliases()
        self.x = self.graph.placeholder("x")
        self.aliases.add(self.x)

    def call(self, target: object, *args: object, dtype: torch.dtype = torch.float32) -> fx.Node:
        node = self.graph.call_function(target, args)  # type: ignore[arg-type]
        node.meta["val"] = torch.empty(2, dtype=dtype)
        self.aliases.add(node, aliased_arguments(node))
        return node

    def used_later(self, changed: fx.Node, at: fx.Node, *known: fx.Node) -> fx.Node | None:
        self.aliases.number(self.graph)
        return self.aliases.used_later(changed, known, at)


@pytest.fixture
def graph() -> Graph:
    graph = Graph()
    graph.x.meta["val"] = torch.empty(2)
    return graph


def test_views_of_views_share_memory_and_results_of_their_own_do_not(graph: Graph) -> None:
    view = graph.call(aten.view.default, graph.x, [2])
    part = graph.call(aten.select.int, view, 0, 0)
    fresh = graph.call(aten.relu.default, part)
    assert graph.aliases.root(part) is graph.aliases.root(graph.x)
    assert graph.aliases.root(fresh) is fresh


def test_a_conversion_shares_memory_only_where_the_type_stays(graph: Graph) -> None:
    assert aliased_arguments(graph.call(aten.to.dtype, graph.x, torch.float32)) == [graph.x]
    assert aliased_arguments(graph.call(aten.to.dtype, graph.x, torch.float64, dtype=torch.float64)) == []
    assert aliased_arguments(graph.call(operator.add, graph.x, 1)) == []


def test_what_an_operator_changes_in_place_is_told_by_its_schema() -> None:
    assert is_in_place(aten.add_.Tensor)
    assert not is_in_place(aten.add.Tensor)
    assert not is_in_place(aten.view.default)
    assert not is_in_place(operator.iadd)


def test_a_change_is_seen_by_a_view_that_is_read_afterwards(graph: Graph) -> None:
    view = graph.call(aten.view.default, graph.x, [2])
    changed = graph.call(aten.add_.Tensor, graph.x, 1)
    assert graph.used_later(graph.x, changed) is None
    graph.call(aten.relu.default, view)
    assert graph.used_later(graph.x, changed) is view
    assert graph.used_later(graph.x, changed, view) is None  # it is written back to


def test_a_view_that_was_read_before_does_not_matter(graph: Graph) -> None:
    view = graph.call(aten.view.default, graph.x, [2])
    graph.call(aten.relu.default, view)
    changed = graph.call(aten.add_.Tensor, graph.x, 1)
    graph.call(aten.relu.default, changed)
    assert graph.used_later(graph.x, changed) is None


def test_the_result_of_a_change_and_a_second_name_are_the_thing_itself(graph: Graph) -> None:
    changed = graph.call(aten.relu_.default, graph.call(aten.add_.Tensor, graph.x, 1))
    name = graph.graph.placeholder("inner")
    graph.aliases.add_same(name, changed)
    assert graph.aliases.base(name) is graph.x
    assert graph.aliases.root(name) is graph.aliases.root(graph.x)


def test_what_is_inside_an_inlined_body_comes_at_its_call(graph: Graph) -> None:
    view = graph.call(aten.view.default, graph.x, [2])
    region, body = graph.call(operator.add, 1, 2), fx.Graph()
    inner = body.placeholder("inner")
    read = body.call_function(aten.relu.default, (view,))
    changed = graph.call(aten.add_.Tensor, graph.x, 1)
    graph.aliases.number(graph.graph)
    graph.aliases.number(body, after=region)
    assert read in view.users
    assert inner not in view.users
    assert graph.aliases.used_later(graph.x, (), changed) is None


def test_the_newest_of_a_value_that_was_replaced_again_and_again() -> None:
    aliases = Aliases()
    for old, new in ((1, 2), (2, 5), (5, 5)):
        aliases.replace(old, new)
    assert [aliases.current(value) for value in (1, 2, 5, 7)] == [5, 5, 5, 7]


def test_what_is_no_node_where_a_tensor_must_be_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"where torch\.export should have passed a tensor"):
        graph_node(3)
