"""Gradients of many parameters as few tensors."""

from __future__ import annotations

import pytest
import torch

from potluck.device.stage.bundles import Bundle, take, total
from potluck.errors import LinkError

LARGE = 200_000  # elements: over half a megabyte
PARAMETERS = {
    "small": torch.zeros(3, 4),
    "large": torch.zeros(LARGE, 1),
    "double": torch.zeros(5, dtype=torch.float64),
    "other": torch.zeros(7),
}
NAMES = tuple(PARAMETERS)


def gradients(seed: int, *missing: str) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: None if name in missing else torch.randn(p.shape, dtype=p.dtype, generator=generator)
        for name, p in PARAMETERS.items()
    }


def arrived(bundle: Bundle) -> Bundle:
    return take(iter([part.clone() for part in bundle.parts]), NAMES, PARAMETERS, "peer")


@pytest.mark.parametrize("missing", [(), ("small",), ("large", "double"), NAMES])
def test_what_is_sent_arrives(missing: tuple[str, ...]) -> None:
    given = gradients(0, *missing)
    found = arrived(Bundle.of(NAMES, given)).by_name(PARAMETERS)
    for name, gradient in given.items():
        assert (found[name] is None) == (gradient is None)
        assert gradient is None or torch.equal(found[name], gradient)  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", [(), ("small",), ("large",), NAMES])
def test_sums_have_the_bits_of_adding_one_by_one(missing: tuple[str, ...]) -> None:
    parts = [gradients(1), gradients(2, *missing), gradients(3)]
    expected = {}
    for name in NAMES:
        there = [part[name].clone() for part in parts if part[name] is not None]  # type: ignore[union-attr]
        expected[name] = there[0]
        for more in there[1:]:
            expected[name] = expected[name] + more
    found = total([arrived(Bundle.of(NAMES, part)) for part in parts], PARAMETERS).by_name(PARAMETERS)
    assert all(torch.equal(found[name], expected[name]) for name in NAMES)  # type: ignore[arg-type]


def test_nobody_has_anything() -> None:
    nothing = Bundle.of(NAMES, gradients(0, *NAMES))
    assert set(total([nothing, nothing], PARAMETERS).by_name(PARAMETERS).values()) == {None}


def test_damaged_ones_are_refused() -> None:
    parts = Bundle.of(NAMES, gradients(0)).parts
    for damaged in ([], parts[:1], parts[:-1], [parts[0][:2], *parts[1:]], [parts[0], parts[1][:-1], *parts[2:]]):
        with pytest.raises(LinkError, match="damaged gradients arrived from peer"):
            take(iter(damaged), NAMES, PARAMETERS, "peer")
    swapped = [parts[0], parts[2], parts[1], *parts[3:]]
    with pytest.raises(LinkError, match="damaged"):
        take(iter(swapped), NAMES, PARAMETERS, "peer")
