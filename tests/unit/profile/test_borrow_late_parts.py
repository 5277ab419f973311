"""Blocks that a device had no time to try splitting take the others' word."""

from __future__ import annotations

from msgspec.structs import replace

from potluck.profile.borrow import share_late_parts
from potluck.types import BlockProfile, DeviceProfile, DeviceSpec


def device(name: str, *parts: tuple[float, float]) -> DeviceProfile:
    blocks = (replace(BlockProfile(timings=()), late_back=back, late_weights=weights) for back, weights in parts)
    return DeviceProfile(device=DeviceSpec(name=name), blocks=tuple(blocks))


def test_what_a_device_has_not_tried_is_the_median_of_the_others_and_what_it_has_stays() -> None:
    untried = (1.0, 0.0)
    fleet = [
        device("a", (0.4, 0.7), untried, untried),
        device("b", (0.5, 0.6), (0.6, 0.5), untried),
        device("c", (0.9, 0.1), untried, untried),
        device("d", untried, untried, untried),
    ]
    found = [[(b.late_back, b.late_weights) for b in d.blocks] for d in share_late_parts(fleet, [True, True, False])]
    assert found == [
        [(0.4, 0.7), (0.6, 0.5), untried],
        [(0.5, 0.6), (0.6, 0.5), untried],
        [(0.9, 0.1), (0.6, 0.5), untried],
        [(0.5, 0.6), (0.6, 0.5), untried],
    ]


def test_a_block_with_weights_that_nobody_has_tried_is_like_the_others() -> None:
    fleet = [device("a", (0.4, 0.7), (1.0, 0.0)), device("b", (0.6, 0.5), (1.0, 0.0))]
    found = share_late_parts(fleet, [True, True])
    assert [d.blocks[1].late_back for d in found] == [0.5, 0.5]
    assert [d.blocks[1].late_kept for d in found] == [1.0, 1.0]
    assert share_late_parts([device("a", (1.0, 0.0))], [True])[0].blocks[0].late_weights == 0.0
