"""The digest of a state that travels."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from potluck.tensors.digest import digest

SIZES = st.integers(1, 40_000)


def of(*tensors: torch.Tensor) -> int:
    return digest([tensor.numpy().data for tensor in tensors])


def noise(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@given(SIZES, st.integers(0, 2**31), st.integers(1, 255))
def test_any_byte_counts(count, place, change):
    before = noise(count)
    after = before.clone()
    after[place % count] ^= change
    assert of(before) != of(after)
    assert of(before) == of(before.clone())


@given(st.integers(2, 5), st.integers(0, 3))
def test_so_does_the_order_of_what_is_summed(blocks, place):
    before = noise(blocks * 8192 + 100)
    after = before.clone()
    first = place % (blocks - 1) * 8192
    after[first : first + 8192], after[first + 8192 : first + 16384] = (
        before[first + 8192 : first + 16384],
        before[first : first + 8192],
    )
    assert of(before) != of(after)


def test_the_order_of_tensors_counts_too():
    small, large = noise(10, 1), noise(20_000, 2)
    assert of(small, large) != of(large, small)
    assert of() == 0
