"""A program that arrives is checked: it refers only to what is there and calls nothing but tensor arithmetic."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from potluck.compute.execution.interpreter import look_up
from potluck.errors import InputError
from potluck.program.blocks import facts
from potluck.program.operators import _ALLOWED, allowed
from potluck.program.program import Items, Node, ProgramPair, Ref, Size, encode
from potluck.program.validity import check, decode
from tests.unit.model.test_rules_program import build_once

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def built():
    return build_once()


FORBIDDEN = [
    "aten.from_file.default",
    "aten._local_scalar_dense.default",
    "aten.resize_.default",
    "aten.set_.source_Tensor",
    "aten.add_.Tensor",
    "aten.add.out",
    "aten.max.dim_max",
    "aten.sort.values",
    "aten.div.out_mode",
    "aten.sum.IntList_out",
    "aten.rand.default",
    "aten.nonzero.default",
    "aten.item.default",
    "aten.save.default",
    "prims.add.default",
    "potluck.open",
    "aten.add",
    "os.system",
    "aten.__class__.default",
]


@pytest.mark.parametrize("op", FORBIDDEN)
def test_whatever_is_not_tensor_arithmetic_is_refused_at_the_door_and_at_the_operator(op, built):
    assert not allowed(op)
    with pytest.raises(InputError, match="list of tensor operators"):
        look_up(op)
    with pytest.raises(InputError, match="list of tensor operators"):
        decode(encode(with_node(built.programs, 0, op=op)))


def test_an_operator_that_writes_into_an_argument_is_refused_whatever_its_name():
    with pytest.raises(InputError, match="changes its arguments"):
        look_up("aten.sort.int")
    assert callable(look_up("aten.to.dtype_layout"))


def test_every_operator_on_the_list_exists_and_leaves_its_arguments_alone():
    for name in sorted(_ALLOWED):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            arguments = getattr(packet, overload)._schema.arguments
            if allowed(f"aten.{name}.{overload}") and name != "sort":
                assert not any(a.alias_info is not None and a.alias_info.is_write for a in arguments), (name, overload)
                assert not any("Generator" in str(a.type) for a in arguments), (name, overload)


def test_side_effects_that_no_schema_shows_are_refused(built):
    x, mean = Ref(0), Ref(1)
    hidden = [
        Node(op="aten.batch_norm.default", args=(x, None, None, mean, mean, True, 0.1, 1e-5, True), outputs=(0,)),
        Node(op="aten.instance_norm.default", args=(x, None, None, mean, mean, True, 0.1, 1e-5, True), outputs=(0,)),
        Node(op="aten.scaled_dot_product_attention.default", args=(x, x, x, None, 0.5), outputs=(0,)),
        Node(op="aten.scaled_dot_product_attention.default", args=(x, x, x), kwargs={"dropout_p": 0.5}, outputs=(0,)),
        Node(op="aten.lstm.input", args=(x, x, x, True, 1, 0.5, True, False, True), outputs=(0,), tuple_output=True),
    ]
    for node in hidden:
        nodes = (replace(node, outputs=built.programs.train.nodes[0].outputs), *built.programs.train.nodes[1:])
        with pytest.raises(InputError, match="changes an argument or draws"):
            check(replace(built.programs, train=replace(built.programs.train, nodes=nodes)))


def with_node(programs, position, **changes):
    nodes = list(programs.train.nodes)
    nodes[position] = replace(nodes[position], **changes)
    return replace(programs, train=replace(programs.train, nodes=tuple(nodes)))


def with_train(programs, **changes):
    return replace(programs, train=replace(programs.train, **changes))


def with_value(programs, number, **changes):
    values = dict(programs.train.values)
    values[number] = replace(values[number], **changes)
    return with_train(programs, values=values)


def last(programs):
    return len(programs.train.nodes) - 1


def nested(depth, leaf):
    for _ in range(depth):
        leaf = ["add", leaf]
    return leaf


def nested_items(depth):
    arg: Any = 1
    for _ in range(depth):
        arg = Items((arg,))
    return arg


# Small at last, and of millions of digits on the way.
HUGE = ["mod", ["mul", *[2**61 - 1] * 100_000], 7]

DAMAGE = {
    "a reference to nothing": lambda p: with_node(p, 0, args=(Ref(99999),)),
    "a negative reference": lambda p: with_node(p, 0, args=(Ref(-1),)),
    "a reference inside a list": lambda p: with_node(p, 0, args=(Items((Ref(99999),)),)),
    "a reference to a later value": lambda p: with_node(p, 0, args=(Ref(p.train.nodes[-1].outputs[0]),)),
    "nodes in another order": lambda p: with_train(p, nodes=p.train.nodes[::-1]),
    "a value made twice": lambda p: with_train(p, nodes=(*p.train.nodes, p.train.nodes[0])),
    "an unknown value": lambda p: with_node(p, 0, outputs=(99999,)),
    "no result": lambda p: with_node(p, 0, outputs=()),
    "an unused single result": lambda p: with_node(p, 0, outputs=(-1,)),
    "a missing value": lambda p: with_train(p, values={k: v for k, v in p.train.values.items() if k != 3}),
    "a huge value number": lambda p: with_train(p, values={**p.train.values, 10**12: p.train.values[0]}),
    "an unknown output": lambda p: with_train(p, outputs=(99999,)),
    "two losses": lambda p: with_train(p, outputs=p.train.outputs * 2),
    "unsorted boundaries": lambda p: with_train(p, boundaries=p.train.boundaries[::-1]),
    "a boundary at 0": lambda p: with_train(p, boundaries=(0, *p.train.boundaries[1:])),
    "a boundary behind the end": lambda p: with_train(p, boundaries=(*p.train.boundaries[:-1], 10**6)),
    "a negative boundary": lambda p: with_train(p, boundaries=(-1, *p.train.boundaries[1:])),
    "blocks of one program only": lambda p: with_train(p, boundaries=p.train.boundaries[1:]),
    "coupled nodes out of range": lambda p: with_train(p, coupled=(10**6,)),
    "the modes exchanged": lambda p: replace(p, train=p.eval, eval=p.train),
    "a negative size": lambda p: with_value(p, 0, shape=(-1,)),
    "a fractional size": lambda p: with_value(p, 0, shape=(["truediv", "b", 3],)),
    "an endless size": lambda p: with_value(p, 0, shape=(["pow", "b", 10**6],)),
    "a size divided by zero": lambda p: with_value(p, 0, shape=(["floordiv", "b", 0],)),
    "a size of another name": lambda p: with_value(p, 0, shape=("c",)),
    "an unknown size operation": lambda p: with_value(p, 0, shape=(["exec", "b"],)),
    "a size without terms": lambda p: with_value(p, 0, shape=(["max"],)),
    "an empty size": lambda p: with_value(p, 0, shape=([],)),
    "a size of nested objects": lambda p: with_value(p, 0, shape=(["add", {"a": 1}],)),
    "a deep size": lambda p: with_value(p, 0, shape=(nested(40, "b"),)),
    "a deep size in an argument": lambda p: with_node(p, 0, args=(Size(nested(40, "b")),)),
    "a size of very many factors": lambda p: with_value(p, 0, shape=(HUGE,)),
    "a size of very many factors in an argument": lambda p: with_node(p, 0, args=(Size(HUGE),)),
    "a size of very many sums": lambda p: with_value(p, 0, shape=(["max", *[["add", "b"] * 30] * 1000],)),
    "very many axes": lambda p: with_value(p, 0, shape=(1,) * 10_000, batch_axis=None),
    "a deep list": lambda p: with_node(p, 0, args=(nested_items(40),)),
    "an unknown element type": lambda p: with_value(p, 0, dtype="float31"),
    "a batch axis that is not there": lambda p: with_value(p, 0, batch_axis=7),
    "no entries per sample": lambda p: with_value(p, 0, batch_factor=0),
    "a source given twice": lambda p: with_train(p, sources=(*p.train.sources, p.train.sources[0])),
    "a name given twice": lambda p: with_train(
        p, sources=(replace(p.train.sources[0], name=p.train.sources[1].name), *p.train.sources[1:])
    ),
    "a parameter with data": lambda p: with_train(
        p, sources=(replace(p.train.sources[0], data="AAAA"), *p.train.sources[1:])
    ),
    "an update of nothing": lambda p: with_train(p, updates=(replace(p.train.updates[0], buffer="nothing"),)),
    "an update with an input": lambda p: with_train(p, updates=(replace(p.train.updates[0], value=0),)),
    "a judge that trains": lambda p: replace(p, judge=p.train),
    "a judge of no verdict": lambda p: replace(p, judge=replace(p.eval, outputs=())),
    "our operator with other arguments": lambda p: with_node(p, dropout_of(p), args=(Ref(0),)),
}


def dropout_of(programs):
    return next(i for i, n in enumerate(programs.train.nodes) if n.op == "potluck.dropout")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_program_is_refused_in_one_line(damage, built):
    data = encode(DAMAGE[damage](built.programs))
    started = time.process_time()
    with pytest.raises(InputError) as refused:
        decode(data)
    assert time.process_time() - started < 1.0
    assert str(refused.value).startswith("program")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("data", ["", "AAAA", "not base64!", "A" * 36])
def test_a_constant_of_the_wrong_size_is_refused(data, built):
    sources = tuple(replace(s, data=data) if s.data is not None else s for s in built.programs.train.sources)
    with pytest.raises(InputError, match="constant"):
        decode(encode(with_train(built.programs, sources=sources)))


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"train":1}', b"[" * 100_000, b'{"a":' * 100_000, b"1e999"]
)
def test_what_is_no_program_at_all_is_refused(data):
    with pytest.raises(InputError, match="not a potluck program"):
        decode(data)


def test_a_size_nested_without_end_is_refused(built):
    shape = b'"shape":["b",6]'
    data = encode(built.programs)
    assert shape in data
    with pytest.raises(InputError, match="not a potluck program"):
        decode(data.replace(shape, b'"shape":[' + b"[" * 50_000 + b"]" * 50_000 + b"]", 1))


def test_a_newer_format_is_refused(built):
    data = encode(built.programs).replace(b'"format":1', b'"format":2')
    with pytest.raises(InputError, match="format"):
        decode(data)


def _paths(tree, path=()):
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _paths(value, (*path, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _paths(value, (*path, index))


TREE = json.loads(encode(build_once().programs))
PATHS = list(_paths(TREE))
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "b", "add", "ref", "size", "list", "nan", "train", "eval", "aten.add.Tensor", "potluck.dropout"]
    ),
    st.text(max_size=5),
)
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


def mutate(path, action, value):
    tree = copy.deepcopy(TREE)
    if not path:
        return value
    parent = tree
    for step in path[:-1]:
        parent = parent[step]
    key = path[-1]
    if action == "delete":
        del parent[key]
    elif action == "copy" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    elif action == "swap" and isinstance(parent, list):
        parent[key], parent[-1] = parent[-1], parent[key]
    else:
        parent[key] = value
    return tree


def assert_program_or_input_error(data):
    try:
        programs = decode(data)
    except InputError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "\n" not in refusal
    if refusal:
        return
    assert isinstance(programs, ProgramPair)
    facts(programs, 1)  # what passes the check can be cut and planned with


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PATHS), st.sampled_from(["set", "delete", "copy", "swap"]), VALUES)
@example(("train", "values", "0", "shape"), "set", [["mul", 2**70, "b"]])
@example(("train", "values", "0", "batch_axis"), "set", -1)
def test_any_change_of_the_json_gives_a_program_or_an_input_error(path, action, value):
    assert_program_or_input_error(json.dumps(mutate(path, action, value)).encode())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.binary(max_size=6), st.integers(0, 6))
def test_any_change_of_the_bytes_gives_a_program_or_an_input_error(at, inserted, removed):
    data = encode(build_once().programs)
    at %= len(data)
    assert_program_or_input_error(data[:at] + inserted + data[at + removed :])
