"""From samples to one tensor per feed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from potluck.coordinator.samples.collate import batch_of_arrays, collate, split_sample
from potluck.errors import InputError
from potluck.job.job import Pad


def listed(feeds: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in feeds.items()}


@pytest.mark.parametrize(
    ("sample", "feeds"),
    [
        ((1.5, 2), {"input": 1.5, "label": 2}),
        (((1, 2), 3), {"input0": 1, "input1": 2, "label": 3}),
        ((1, 2, 3), {"input0": 1, "input1": 2, "label": 3}),
        (((1,), 3), {"input": 1, "label": 3}),
        (({"words": [1, 2], "mask": np.array([True])}, 3), {"words": [1, 2], "mask": [True], "label": 3}),
    ],
)
def test_inputs_are_named_by_how_they_are_given(sample: Any, feeds: dict[str, Any]) -> None:
    found = split_sample(sample)
    assert listed(found) == feeds
    assert list(found)[-1] == "label"


def test_arrays_keep_their_type() -> None:
    found = split_sample((np.zeros(2, np.float16), np.int32(3)))
    assert (found["input"].dtype, found["label"].dtype) == (torch.float16, torch.int32)


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (3, r"it is an int, not \(inputs, labels\)"),
        ((1,), r"not \(inputs, labels\)"),
        (({}, 1), "at least one, all strings"),
        (({"label": 1}, 1), "none 'label'"),
        (("text", 1), "its input is a str; give a tensor, an array or a number"),
        ((np.array(["text"]), 1), "dtype <U4 cannot become a tensor"),
    ],
)
def test_what_is_no_sample_is_refused(sample: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        split_sample(sample)


def test_a_batch_of_arrays_is_the_batch_of_its_samples() -> None:
    data = (np.arange(12.0).reshape(4, 3), torch.arange(4), np.arange(4))
    samples = [split_sample(tuple(column[i] for column in data)) for i in (2, 0)]
    assert listed(batch_of_arrays(data, [2, 0])) == listed(collate(samples, [2, 0], None))


def test_short_samples_are_filled_up_labels_with_their_own_value() -> None:
    samples = [{"input": torch.ones(n, 2), "label": torch.ones(n)} for n in (1, 2)]
    found = collate(samples, [0, 1], Pad(length=2, value=0.5, label_value=-100))
    assert found["input"].tolist() == [[[1, 1], [0.5, 0.5]], [[1, 1], [1, 1]]]
    assert found["label"].tolist() == [[1, -100], [1, 1]]


@pytest.mark.parametrize(
    ("other", "pad", "words"),
    [
        (
            {"input": torch.ones(3), "label": torch.ones(1)},
            None,
            r"input of sample 4 has shape \(2,\) but of sample 9 ",
        ),
        ({"input": torch.ones(2).double(), "label": torch.ones(1)}, None, "is torch.float32 but of sample 9 torch.fl"),
        ({"input": torch.ones(2)}, None, "sample 4 has input, label but sample 9 has input"),
        ({"input": torch.ones(3), "label": torch.ones(1)}, Pad(length=2), "sample 9 has length 3 but pad says 2"),
    ],
)
def test_samples_that_differ_are_named_with_how(other: dict[str, torch.Tensor], pad: Pad | None, words: str) -> None:
    first = {"input": torch.ones(2), "label": torch.ones(1)}
    with pytest.raises(InputError, match=words):
        collate([first, other], [4, 9], pad)
