"""Running statistics go to a member and back; those of the same micro-batch are averaged by rows."""

from __future__ import annotations

import pytest
import torch

from potluck.compute.running_buffers import Statistic, Statistics
from potluck.device.stage.statistics import merged, read, written
from potluck.errors import LinkError


def some() -> Statistics:
    return {(1, 0): Statistic(torch.tensor([1.0, 2.0]), 3), (0, 2): Statistic(torch.ones(4).double(), 5)}


def listed(statistics: Statistics) -> dict[tuple[int, int], tuple[list[float], torch.dtype, int]]:
    return {key: (s.flat.tolist(), s.flat.dtype, s.rows) for key, s in statistics.items()}


@pytest.mark.parametrize("statistics", [some(), {}])
def test_what_is_written_is_read(statistics: Statistics) -> None:
    assert listed(read(written(statistics), "peer")) == listed(statistics)


@pytest.mark.parametrize("lost", [slice(0, 0), slice(0, 2), slice(1, 3)])
def test_what_lacks_a_part_is_refused(lost: slice) -> None:
    with pytest.raises(LinkError, match="damaged statistics arrived from peer"):
        read(written(some())[lost], "peer")
    with pytest.raises(LinkError, match="damaged"):
        read([*written(some())[:2], None], "peer")


def test_by_turns_everybody_has_its_own_micro_batches_with_the_same_bits() -> None:
    a, b = Statistic(torch.tensor([0.1]), 7), Statistic(torch.tensor([0.3]), 7)
    found = merged([{(0, 0): a}, {(1, 0): b}])
    assert found[0, 0] is a
    assert found[1, 0] is b


def test_by_samples_they_are_averaged_by_rows() -> None:
    found = merged(
        [
            {(0, 0): Statistic(torch.tensor([1.0, 0.0]), 1)},
            {(0, 0): Statistic(torch.tensor([5.0, 4.0]), 3)},
        ]
    )
    assert listed(found) == {(0, 0): ([4.0, 3.0], torch.float32, 4)}
