"""What the corrections for gradients that are one step late do, where it can be worked out: on a quadratic."""

from __future__ import annotations

import pytest
import torch

from potluck.compute.stage_optimizer import StageOptimizer
from potluck.job.optimizers import SGD, Optimizer, ParamGroup

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
