"""The shipped data: complete, always the same, and split as promised."""

import subprocess
import sys

import numpy as np
import pytest

from potluck.datasets.digits import digits
from potluck.datasets.text import stdlib_text
from potluck.errors import InputError


def test_digits_are_all_there_and_scaled():
    train, train_labels, test, test_labels = digits()
    assert train.shape == (1500, 1, 8, 8)
    assert test.shape == (297, 1, 8, 8)
    assert (train.dtype.name, train_labels.dtype.name) == ("float32", "int64")
    assert (train.min(), train.max()) == (0.0, 1.0)
    everything = np.concatenate([train, test])
    assert int((everything * 16).sum()) == 561718  # the pixel sum of the published file
    assert len(train_labels) + len(test_labels) == 1797


def test_digits_split_keeps_the_share_of_every_class():
    _, train_labels, _, test_labels = digits()
    train, test = np.bincount(train_labels), np.bincount(test_labels)
    assert np.all(np.abs(test - (train + test) * 297 / 1797) < 1)


def test_digits_are_the_same_every_time():
    assert [a.tobytes() for a in digits()] == [a.tobytes() for a in digits()]


def test_stdlib_text_has_the_size_asked_for_and_longer_texts_start_with_shorter_ones():
    short, long = stdlib_text(10_000), stdlib_text(500_000)
    assert (len(short), len(long)) == (10_000, 500_000)
    assert long.startswith(short)
    assert b"import" in long


def test_stdlib_text_refuses_more_than_there_is():
    with pytest.raises(InputError, match="ask for at most"):
        stdlib_text(1 << 40)


def test_stdlib_text_refuses_nothing():
    with pytest.raises(InputError, match="at least 1"):
        stdlib_text(0)


def test_datasets_do_not_load_torch():
    code = "import sys, potluck.datasets.digits as d, potluck.datasets.text; d.digits(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
