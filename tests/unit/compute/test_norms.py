"""Squared norms: near float64's, the same however a gradient lies in memory, and finite whenever the gradient is."""

from __future__ import annotations

import math

import pytest
import torch

from potluck.compute.norms import squared_norm


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 4097, 1_000_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_near_that_of_float64(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    gradient = (torch.randn(size, dtype=torch.float64) * torch.logspace(-3, 0, size, dtype=torch.float64)).to(dtype)
    assert squared_norm(gradient) == pytest.approx(float(gradient.double().square().sum()), rel=1e-6)


def test_the_order_in_memory_does_not_matter() -> None:
    gradient = torch.randn(300, 77)
    turned = gradient.t().contiguous().t()
    assert turned.stride() != gradient.stride()
    assert squared_norm(turned) == squared_norm(gradient)


def test_what_overflows_in_float32_is_added_in_float64() -> None:
    gradient = torch.full((10_000,), 1e30)
    assert squared_norm(gradient) == pytest.approx(1e64, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 5000, 9999])
def test_what_is_not_finite_shows(bad: float, place: int) -> None:
    gradient = torch.zeros(10_000)
    gradient[place] = bad
    assert not math.isfinite(squared_norm(gradient))
