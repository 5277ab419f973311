"""What the corrections for gradients that are one step late do, where it can be worked out: on a quadratic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
import torch

from potluck.compute.stage_optimizer import StageOptimizer
from potluck.errors import InputError
from potluck.job.optimizer_state import slots
from potluck.job.optimizers import SGD, AdamW, Muon, NAdam, Optimizer, ParamGroup

CURVES = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)  # second derivatives
START = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


def descend(rule: Optimizer, steps: int, late: int = 1) -> list[torch.Tensor]:
    """The weights after each step, each with the gradient of the weights so many steps before."""
    weight = torch.nn.Parameter(START.clone())
    optimizer, points = StageOptimizer(rule, {"w": weight}), [START]
    for step in range(steps):
        weight.grad = CURVES * points[max(0, step - late)]
        optimizer.step()
        points.append(weight.detach().clone())
    return points


@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.99])
def test_discounted_nesterov_is_the_published_rule_seen_from_the_point_ahead(momentum: float) -> None:
    lr, steps = 0.3, 40
    found = descend(SGD(lr=lr, momentum=momentum, nesterov=True, discounted=True), steps)
    weights, change, ahead = START, torch.zeros(3, dtype=torch.float64), [START]
    for step in range(steps):
        gradient = CURVES * ahead[max(0, step - 1)]
        following = weights + momentum * change - lr * (1 - momentum) * gradient
        weights, change = following, following - weights
        ahead.append(weights + momentum * change)
    assert torch.allclose(torch.stack(found), torch.stack(ahead), rtol=1e-12, atol=1e-12)


def test_with_late_gradients_the_discount_keeps_a_rate_usable_at_high_momentum() -> None:
    plain = descend(SGD(lr=0.3, momentum=0.99, nesterov=True), 400)
    discounted = descend(SGD(lr=0.3, momentum=0.99, nesterov=True, discounted=True), 400)
    assert plain[-1].norm() > 1e6
    assert discounted[-1].norm() < 0.7 * START.norm()


def test_the_discount_follows_the_momentum_of_a_group() -> None:
    group = ParamGroup(match=("w",), overrides={"momentum": 0.5})
    found = descend(SGD(lr=0.3, momentum=0.9, nesterov=True, discounted=True, groups=(group,)), 5)
    expected = descend(SGD(lr=0.15, momentum=0.5, nesterov=True), 5)
    assert torch.equal(torch.stack(found), torch.stack(expected))


def test_feedback_lets_momentum_take_a_rate_at_which_late_gradients_alone_diverge() -> None:
    """With momentum m, late gradients allow rates up to (1 - m) / curvature; feedback 1 allows more than twice that."""
    alone = descend(SGD(lr=0.2, momentum=0.9), 300)
    corrected = descend(SGD(lr=0.2, momentum=0.9, feedback=1.0), 300)
    assert alone[-1].norm() > 1e6
    assert corrected[-1].norm() < 1e-3


def test_feedback_of_an_eighth_converges_fastest_without_momentum() -> None:
    """Of one curvature c, the best rate alone takes steps of 1/2 (c lr = 1/4), and with 1/8 of 1/3 (c lr = 8/27)."""
    alone, corrected = descend(SGD(lr=1 / 4), 40), descend(SGD(lr=8 / 27, feedback=1 / 8), 40)
    assert corrected[-1][0].abs() < 1e-4 * alone[-1][0].abs()


def test_feedback_lowers_the_highest_rate_without_momentum() -> None:
    assert descend(SGD(lr=0.8), 300)[-1].norm() < 1e-6
    assert descend(SGD(lr=0.8, feedback=1.0), 300)[-1].norm() > 1e6


CORRECTED = (
    SGD(lr=0.1, feedback=0.5),
    SGD(lr=0.1, momentum=0.9, nesterov=True, discounted=True, feedback=1.0),
    AdamW(lr=0.1, feedback=0.5),
    NAdam(lr=0.1, feedback=0.25),
    Muon(lr=0.1, match=("a",), feedback=0.5, rest=AdamW(lr=0.1, feedback=1.0)),
    Muon(lr=0.1, match=("a",), rest=AdamW(lr=0.1, feedback=1.0)),
)


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(3, 2, generator=generator) for name in ("a", "b", "c")}


def train(optimizers: Sequence[StageOptimizer], held: Mapping[str, torch.Tensor], rounds: range) -> None:
    for round in rounds:
        generator = torch.Generator().manual_seed(100 + round)
        for weight in held.values():
            weight.grad = torch.randn(3, 2, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("rule", CORRECTED, ids=repr)
def test_what_feedback_remembers_moves_with_the_state_and_is_counted(rule: Optimizer) -> None:
    whole, held = weights(), weights()
    one, first = StageOptimizer(rule, whole), StageOptimizer(rule, held)
    train([one], whole, range(5))
    train([first], held, range(3))
    halves = [{"a": held["a"].clone(), "b": held["b"].clone()}, {"c": held["c"].clone()}]
    parts = [StageOptimizer(rule, half) for half in halves]
    saved = first.state()
    for part in parts:
        part.load({key: t for key, t in saved.items() if key.partition("/")[0] in part.parameters})
    train([first], held, range(3, 4))  # what was loaded was copied
    moved = halves[0] | halves[1]
    train(parts, moved, range(3, 5))
    assert all(torch.equal(moved[name], whole[name]) for name in whole)
    named = Counter(k.partition("/")[0] for k in saved if k.endswith(("_gradient", "_buffer", "_avg", "_avg_sq")))
    assert max(named.values()) == slots(rule)


def test_feedback_is_what_its_formula_says_and_leaves_the_given_gradient_alone() -> None:
    held = {"a": torch.zeros(2)}
    optimizer = StageOptimizer(SGD(lr=1.0, feedback=0.5), held)
    given = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])]
    for gradient in given:
        held["a"].grad = gradient
        optimizer.step()
    assert held["a"].tolist() == [-(1.0 + 3.0 + 0.5 * 2.0), -(2.0 + 1.0 - 0.5)]
    assert [gradient.tolist() for gradient in given] == [[1.0, 2.0], [3.0, 1.0]]
    assert optimizer.state()["a/last_gradient"].tolist() == [3.0, 1.0]


def test_a_state_without_the_last_gradient_is_refused_where_there_is_feedback() -> None:
    held = weights()
    plain = StageOptimizer(SGD(lr=0.1, momentum=0.9), held)
    train([plain], held, range(1))
    with pytest.raises(InputError, match="SGD keeps last_gradient, momentum_buffer; load the state of the same"):
        StageOptimizer(SGD(lr=0.1, momentum=0.9, feedback=1.0), held).load(plain.state())


def test_no_group_has_feedback_of_its_own() -> None:
    with pytest.raises(InputError, match="group override 'feedback' is not known"):
        SGD(lr=0.1, groups=(ParamGroup(match=("a",), overrides={"feedback": 1.0}),))
