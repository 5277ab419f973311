"""Where a device's own data comes from beside files of arrays: folders of images, and functions of its owner."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.advice import one_line
from potluck.errors import InputError

_Array = npt.NDArray[Any]
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff")


def images(name: str, folder: Path) -> tuple[dict[str, _Array], tuple[str, ...]]:
    """A folder with one folder for each label: pictures as float32 from 0 to 1, channels first; and the labels' names.

    Folders that are called 0, 1, … say their labels themselves, and have no names. Others are numbered in order, which
    is the same order elsewhere only if the names are: a label of which there are no pictures here needs its folder too.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(f"--data {name}: {folder} is a folder of images; install pillow to read them") from None
    labels = sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not labels:
        raise InputError(f"--data {name}: {folder} has no folders in it; give one folder for each label")
    numbered = all(label.isascii() and label.isdigit() for label in labels)
    pictures, numbers = [], []
    for place, label in enumerate(labels):
        for file in sorted((folder / label).iterdir()):
            if file.suffix.lower() not in _PICTURES:
                continue
            try:
                with Image.open(file) as picture:
                    plain = picture.convert("L" if picture.mode in ("1", "L", "I", "I;16", "F") else "RGB")
                    pixels = np.asarray(plain, np.float32) / 255
            except (OSError, UnidentifiedImageError, ValueError) as error:
                raise InputError(f"--data {name}: {file} is no picture ({error}); take it out") from None
            pictures.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
            numbers.append(int(label) if numbered else place)
            if pictures[-1].shape != pictures[0].shape:
                raise InputError(
                    f"--data {name}: {file} is {pictures[-1].shape}, and others are {pictures[0].shape}; "
                    "make them equal"
                )
    if not pictures:
        raise InputError(f"--data {name}: no pictures in the folders of {folder}; give some")
    arrays = {"input": np.stack(pictures), "label": np.array(numbers, np.int64)}
    return arrays, () if numbered else tuple(labels)


def from_function(name: str, where: str) -> dict[str, _Array]:
    """What a function of this device's owner, MODULE:FUNCTION, returns: arrays by name, or (inputs, labels)."""
    module, _, function = where.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), function)()
    except Exception as error:  # the owner's code may fail in any way
        raise InputError(f"--data {name}: {where} fails: {one_line(error)}; correct it") from error
    if isinstance(made, tuple) and len(made) == 2:
        made = {"input": made[0], "label": made[1]}
    if not isinstance(made, Mapping):
        raise InputError(f"--data {name}: {where} returns a {type(made).__name__}; return a dict of arrays")
    return {str(key): np.asarray(value) for key, value in made.items()}
