"""A program travels as JSON with nothing lost, is the same wherever it is made, and is checked wherever it arrives."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.compute.constants import constant_tensor
from potluck.compute.execution.execution import empty_registers
from potluck.compute.execution.interpreter import Interpreter
from potluck.compute.our_operators import Context
from potluck.compute.randomness import Draw
from potluck.program.program import Items, Node, NonFinite, Ref, encode, evaluate_size
from potluck.program.validity import decode
from tests.unit.model.pipeline import CPU, Pipeline, even_cuts
from tests.unit.model.small_models import (
    assert_equals_eager,
    build_small,
    stepped,
    train_eagerly,
    vector_batches,
)

replace = msgspec.structs.replace


TABLE = [1.0, math.inf, -math.inf, 0.5, -0.0, 1e-40]


class Everything(nn.Module):
    """Dropout, batch statistics, a counter, constants, a mask of -inf, sizes that follow from the batch."""

    table: torch.Tensor

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.1)
        self.register_buffer("table", torch.tensor(TABLE), persistent=False)

    def forward(self, x):
        x = self.drop(self.norm(self.first(x)))
        mask = torch.full((6,), float("-inf")).masked_fill(torch.arange(6) < 4, 0.0)
        x = (self.second(x) + mask).softmax(1) + self.table.clamp(-1, 1)
        return self.third(x.view(x.shape[0], 2, 3).transpose(1, 2).reshape(x.shape[0] * 2, 3).view(-1, 6))


def build_everything():
    torch.manual_seed(0)
    return build_small(Everything())


@functools.cache
def build_once():
    return build_everything()


@pytest.fixture(scope="module")
def built():
    return build_once()


def test_nothing_is_lost_on_the_way(built):
    data = encode(built.programs)
    there = decode(data)
    assert there == built.programs
    assert encode(there) == data
    here, away = (Pipeline(p, built.state, even_cuts(p.train.block_count, 3)) for p in (built.programs, there))
    for pipeline in (here, away):
        pipeline.round(0, vector_batches((4, 3)))
    assert all(torch.equal(t, away.tensors()[n]) for n, t in here.tensors().items())


def test_non_finite_numbers_survive(built):
    text = encode(built.programs).decode()
    assert '{"type":"float","text":"-inf"}' in text

    def step(self, i, x):
        y = torch.where(x > 9, float("inf"), x)
        return torch.nan_to_num(torch.where(x < -9, float("nan"), y), nan=0.0, posinf=1.0).clamp(-math.inf, 4)

    small = build_small(stepped(step))
    numbers = {"inf", "-inf", "nan"}
    assert {a.text for n in small.programs.train.nodes for a in n.args if isinstance(a, NonFinite)} == numbers
    there = decode(encode(small.programs))
    assert_equals_eager(replace_programs(small, there), stepped(step), stages=2)


def replace_programs(built, programs):
    return dataclasses.replace(built, programs=programs)


def test_non_finite_constants_survive_bit_by_bit(built):
    there = decode(encode(built.programs)).train
    source = next(s for s in there.sources if s.name.endswith("table"))
    found = constant_tensor(there, source.id, source.data or "")
    assert torch.equal(found, torch.tensor(TABLE))
    assert math.copysign(1, float(found[4])) == -1


def test_the_digest_is_the_same_at_every_build(built):
    assert build_everything().programs.digest() == built.programs.digest()
    other = replace(built.programs, train=replace(built.programs.train, boundaries=()))
    assert other.digest() != built.programs.digest()


def test_the_digest_is_the_same_in_another_process(built):
    script = "from tests.unit.model.test_rules_program import build_once; print(build_once().programs.digest())"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.strip() == built.programs.digest()


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (7, 7),
        ("b", 5),
        (["mul", 3, "b"], 15),
        (["add", "b", 1, 2], 8),
        (["floordiv", "b", 2], 2),
        (["mod", "b", 3], 2),
        (["max", "b", 9], 9),
        (["min", "b", 9], 5),
        (["truediv", "b", 2], 2.5),
        (["pow", "b", 2], 25),
    ],
)
def test_sizes_are_computed_from_the_rows(tree, expected):
    assert evaluate_size(tree, 5) == expected


def test_arguments_may_be_lists_in_lists_and_keywords():
    """torch passes some tensors only so: index([None, i]), cat(tensors=[…])."""
    pair = build_small(stepped(lambda self, i, x: x[:, torch.tensor([1, 0, 2, 3, 4, 5])])).programs
    program = pair.train
    x = next(s.id for s in program.sources if s.name == "input")
    number = len(program.values)
    node = Node(
        op="aten.cat.default",
        args=(),
        kwargs={"tensors": Items((Ref(x), Ref(x))), "dim": 1},
        outputs=(number,),
    )
    program = replace(program, nodes=(node,), values={**program.values, number: program.values[x]})
    code = Interpreter(program, [0], program.values, CPU)
    registers = empty_registers(program)
    registers[x] = torch.ones(2, 6)
    code.forward(registers, Context(2, Draw(0, 0, 0, 0), CPU))
    assert registers[number].shape == (2, 12)


def test_constants_and_hidden_buffers_travel_with_the_program():
    class Constants(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.register_buffer("hidden", torch.randn(6), persistent=False)
            self.plain = torch.randn(6)

        def forward(self, x):
            return self.second(self.first(x) * self.hidden + self.plain + torch.tensor([0.0, 1, 2, 3, 4, 5]))

    def make():
        torch.manual_seed(0)
        return Constants()

    built = build_small(make())
    assert set(built.state) == set(make().state_dict())
    there = replace_programs(built, decode(encode(built.programs)))
    assert_equals_eager(there, make(), stages=2)


def test_a_constant_may_share_its_name_with_a_parameter_and_a_buffer():
    class Loss(nn.Module):
        weight: torch.Tensor
        running_mean: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.linspace(1, 2, 6))
            self.register_buffer("running_mean", torch.linspace(3, 4, 6))

        def forward(self, outputs, labels):
            wrong = F.mse_loss(outputs, labels, reduction="none")
            return (wrong * self.weight * self.running_mean).mean() * 0.1

    def make():
        return stepped(lambda self, i, x: self.loss(x) if i == 2 else x, loss=nn.BatchNorm1d(6))

    built = build_small(make(), Loss())
    names = {(s.kind, s.name) for s in built.programs.train.sources if "loss" in s.name}
    assert {("parameter", "loss.weight"), ("buffer", "loss.running_mean")} <= names
    assert [kind for kind, _ in names].count("constant") == 2
    batches = vector_batches((4, 3))
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2))
    cut.round(0, batches)
    expected = train_eagerly(make().train(), [batches], Loss()).state_dict()
    assert all(torch.equal(tensor, expected[n]) for n, tensor in cut.tensors().items() if n in expected)
