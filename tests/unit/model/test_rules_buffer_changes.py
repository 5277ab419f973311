"""Buffers changed in any other way than statistics: one holder, adopted at commit; what would be lost is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from potluck.errors import ModelError
from potluck.program.blocks import facts
from tests.unit.model.pipeline import differing
from tests.unit.model.small_models import assert_equals_eager, build_small, stepped, vector_batches
from tests.unit.model.test_rules_buffers import assert_one_block_uses, pipeline


def by_copy(self, i, x):
    if i == 1:
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x


def by_assignment(self, i, x):
    if i == 1:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
    return x


def by_part(self, i, x):
    if i == 1:
        self.average[2:4] = x.detach().mean(0)[2:4]
    return x


def read_after_the_change(self, i, x):
    if i == 1:
        with torch.no_grad():
            self.average.lerp_(x.mean(0), 0.1)
        x = x - self.average
    return x


def from_inputs_alone(self, i, x):
    if i == 2:
        self.average = torch.arange(6.0) * x.shape[0]  # depends on no parameter and not on the old value
    return x


GENERAL = [by_copy, by_assignment, by_part, read_after_the_change, from_inputs_alone]


@pytest.mark.parametrize("step", GENERAL, ids=lambda f: f.__name__)
def test_any_other_change_is_exclusive_and_has_the_bits_of_the_module(step):
    built = build_small(stepped(step, average=torch.zeros(6)))
    assert [(u.buffer, u.kind) for u in built.programs.train.updates] == [("average", "value")]
    assert sum(b.exclusive for b in facts(built.programs, 1).blocks) == 1
    cut = assert_equals_eager(built, stepped(step, average=torch.zeros(6)), stages=3)
    assert cut.tensors()["average"].abs().sum() > 0
    aborted = pipeline(built)
    aborted.round(0, vector_batches((4, 3)), commit=False)
    assert differing(aborted.tensors(), built.state) == []


def test_a_buffer_that_changes_is_read_and_written_in_one_block():
    def spread(self, i, x):
        y = x - self.average
        if i == 1:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return y

    built = build_small(stepped(spread, average=torch.zeros(6)))
    assert_one_block_uses(built, "average")
    assert_equals_eager(built, stepped(spread, average=torch.zeros(6)), stages=2)


def counter(self, i, x):
    if i == 0:
        self.seen += 1
    return x


def counter_that_matters(self, i, x):
    if i == 0:
        self.seen += 1
        x = x * (1 / (1 + self.seen))
    return x


def counter_read_before(self, i, x):
    if i == 0:
        x = x * (1 / (1 + self.seen))
        self.seen += 1
    return x


def test_a_counter_is_folded_and_one_that_is_read_is_exclusive():
    seen = torch.zeros((), dtype=torch.int64)
    built = build_small(stepped(counter, seen=seen.clone()))
    assert [u.kind for u in built.programs.train.updates] == ["count"]
    assert_equals_eager(built, stepped(counter, seen=seen.clone()), stages=3)
    for read in (counter_that_matters, counter_read_before):
        built = build_small(stepped(read, seen=seen.clone()))
        assert [u.kind for u in built.programs.train.updates] == ["value"]
        assert_equals_eager(built, stepped(read, seen=seen.clone()), stages=3)


def test_a_constant_buffer_belongs_to_whoever_uses_it():
    def make():
        return stepped(lambda self, i, x: x * self.scale, scale=torch.linspace(0.5, 1, 6))

    built = build_small(make())
    cut = assert_equals_eager(built, make(), stages=3)
    assert all("scale" in group[0].buffers for group in cut.groups)


class Keeper(nn.Module):
    def __init__(self, persistent):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("kept", torch.zeros(6), persistent=persistent)
        self.plain = torch.zeros(6)

    def forward(self, x):
        self.kept += x.mean(0)
        return self.layer(x)


class Plain(Keeper):
    def forward(self, x):
        self.plain += x.mean(0)
        return self.layer(x)


class Assigned(Keeper):
    def forward(self, x):
        y = self.layer(x) + self.plain
        self.plain = y.detach().mean(0)
        return y


class OtherShape(Keeper):
    def forward(self, x):
        self.kept = x.mean()
        return self.layer(x)


def test_state_that_would_be_lost_is_refused_naming_it():
    with pytest.raises(ModelError, match=r"test_rules_buffer_changes.py:\d+: .*buffer kept, .*persistent=True"):
        build_small(Keeper(persistent=False))
    with pytest.raises(ModelError, match=r"test_rules_buffer_changes.py:\d+: .*not a buffer"):
        build_small(Plain(persistent=True))
    with pytest.raises(ModelError, match=r"plain: .*register_buffer\('plain'"):
        build_small(Assigned(persistent=True))
    with pytest.raises(ModelError, match=r"OtherShape\.kept: .*another shape"):
        build_small(OtherShape(persistent=True))


def test_hidden_statistics_of_instance_norm_are_refused():
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    with pytest.raises(ModelError, match=r"track_running_stats=False"):
        build_small(stepped(lambda self, i, x: self.norm(x.view(-1, 2, 3)).flatten(1), norm=norm))
