"""Handwritten digits that travel with the package: 1,797 grey images of 8 by 8 pixels (UCI, CC BY 4.0, see NOTICE)."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.errors import InputError

TEST_SAMPLES = 297  # of 1797: they leave 1500 to train with, which have many divisors
BRIGHTEST = 16  # pixels are counts of 0..16

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


def digits() -> tuple[Images, Labels, Images, Labels]:
    """Return train images, train labels, test images, test labels; images are [N, 1, 8, 8] in 0..1.

    Always the same 1,500 and 297 samples. The file is ordered by writer; test samples are spread evenly over it.
    """
    try:
        with resources.files(__package__).joinpath("digits.npz").open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            pixels, labels = stored["images"], stored["labels"].astype(np.int64)
    except FileNotFoundError as error:
        raise InputError("digits.npz is missing from the installed package; install potluck again") from error
    images = (pixels.astype(np.float32) / BRIGHTEST)[:, None]
    test = _spread_over_each_class(labels, TEST_SAMPLES)
    return images[~test], labels[~test], images[test], labels[test]


def _spread_over_each_class(labels: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Return a mask of `count` samples, as many of each class as its size asks for, evenly spaced."""
    sizes = np.bincount(labels)
    exact = sizes * count / len(labels)
    quota = np.floor(exact).astype(int)
    quota[np.argsort(quota - exact, kind="stable")[: count - quota.sum()]] += 1  # largest remainders first
    mask = np.zeros(len(labels), dtype=np.bool_)
    for digit, wanted in enumerate(quota):
        places = np.flatnonzero(labels == digit)
        mask[places[(2 * np.arange(wanted) + 1) * len(places) // (2 * wanted)]] = True
    return mask
