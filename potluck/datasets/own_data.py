"""Data that a device owns and that never leaves it: files of arrays, of text or of tokens, named by the device's owner.

NAME=digits.npz            arrays "input" (or "input0", …, or a model's own names) and "label"; .safetensors alike
NAME=corpus.txt            bytes of text, cut into windows; a label is the byte that follows
NAME=tokens.npy            one row of token numbers, cut into windows likewise
NAME=folder                one folder of images for each label (needs pillow)
NAME=module:function       what a function of the device's owner returns: a dict of arrays, or (inputs, labels)
NAME:eval=…                any of these, for samples that the device is to judge by and does not train on
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from potluck.advice import said
from potluck.datasets.own_sources import from_function, images
from potluck.errors import InputError

_Array = npt.NDArray[Any]
INPUT, LABEL = "input", "label"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_HELD_OUT = ":eval"
_ARRAYS, _STREAMS = (".npz", ".safetensors"), (".txt", ".npy")


@dataclass(frozen=True)
class WantedData:
    """What a job feeds on: of each of its feeds, the shape of a sample and the type of its elements."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class LocalData:
    """A data set on this device."""

    name: str
    path: Path
    arrays: Mapping[str, _Array]  # by feed, the sample along the first axis
    stream: _Array | None = None  # or one row of tokens, which is cut when it is known how long a sample is
    classes: tuple[str, ...] = ()  # what its labels 0, 1, … stand for, where it says so

    @property
    def samples(self) -> int | None:
        """How many there are; of a row of tokens that is not known yet."""
        return len(next(iter(self.arrays.values()))) if self.arrays else None

    def fitted(self, wanted: Mapping[str, WantedData]) -> LocalData:
        """The data as a job needs it, or an InputError that says what does not fit."""
        data = self if self.stream is None else self._cut(self.stream, wanted)
        for feed, want in wanted.items():
            array = data.arrays.get(feed)
            if array is None:
                has = ", ".join(data.arrays)
                raise self._wrong(f"has {has}, and the job needs {feed!r}", "name its arrays like that")
            if array.shape[1:] != want.shape:
                shapes = f"{array.shape[1:]} each, and the job's are {want.shape}"
                raise self._wrong(f"its {feed} has samples of shape {shapes}", "reshape them")
            if str(array.dtype) != want.dtype:
                raise self._wrong(f"its {feed} is {array.dtype}, and the job's is {want.dtype}", "convert it")
            if count := _not_finite(array):
                raise self._wrong(f"its {feed} has {count} of {len(array)} rows with NaN or infinity", "take them out")
        return data

    def _cut(self, stream: _Array, wanted: Mapping[str, WantedData]) -> LocalData:
        """Windows of a row of tokens, each with the tokens that follow as its labels."""
        want, label = wanted.get(INPUT), wanted.get(LABEL)
        if want is None or label is None or len(want.shape) != 1 or label.shape != want.shape:
            raise self._wrong("is a row of tokens, and the job does not train on those", "give arrays")
        [length] = want.shape
        count = (len(stream) - 1) // length
        if count < 1:
            raise self._wrong(f"has {len(stream)} tokens, fewer than one window of {length + 1}", "give more text")
        first, after = (stream[at : at + count * length].reshape(count, length) for at in (0, 1))
        arrays = {INPUT: first.astype(want.dtype), LABEL: after.astype(label.dtype)}
        return LocalData(self.name, self.path, arrays)

    def _wrong(self, what: str, fix: str) -> InputError:
        return InputError(f"data {self.name}: {self.path} {what}; {fix}")


def read_all(texts: Iterable[str]) -> list[LocalData]:
    """The data sets of several NAME=PATH."""
    found = [read_local(text) for text in texts]
    names = [data.name for data in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--data {name}: given twice; give each data set its own name")
    return found


def held_out_name(name: str) -> str:
    """Of the samples that a device judges by."""
    return name + _HELD_OUT


def for_device(text: str, device: str) -> str:
    """The NAME=PATH of one of several devices on this machine: {device} in it stands for its name."""
    return text.replace("{device}", device)


def check_named(text: str) -> tuple[str, Path, str]:
    """Name, path and what it may be instead of a path, of a NAME=PATH; an InputError if there is nothing to read."""
    name, equals, place = text.partition("=")
    if not equals or not name.removesuffix(_HELD_OUT).isidentifier() or not place:
        raise InputError(f"--data {text!r}: give NAME=PATH, like digits=shard1.npz, or NAME:eval=PATH to judge by")
    path = Path(place).expanduser()
    if path.is_dir():
        return name, path, ""
    if _FUNCTION.fullmatch(place) and not path.exists():
        return name, path, place
    if path.suffix not in _ARRAYS + _STREAMS:
        known = ", ".join(_ARRAYS + _STREAMS)
        raise InputError(
            f"--data {name}: {path} is neither one of {known} nor a folder of images nor MODULE:FUNCTION; convert it"
        )
    if not path.exists():
        raise InputError(f"--data {name}: {path} does not exist; give a file of this device")
    return name, path, ""


def read_local(text: str) -> LocalData:
    """The data set of a NAME=PATH."""
    name, path, function = check_named(text)
    if function:
        return _checked(LocalData(name, path, from_function(name, function)))
    if path.is_dir():
        arrays, classes = images(name, path)
        return _checked(LocalData(name, path, arrays, classes=classes))
    try:
        if path.suffix in _STREAMS:
            return _stream(name, path)
        arrays = _archive(path) if path.suffix == ".npz" else load_file(path)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, SafetensorError) as error:
        what = said(error)
        raise InputError(f"--data {name}: {path} cannot be read: {what}; write it again") from error
    return _checked(LocalData(name, path, dict(arrays)))


def _archive(path: Path) -> dict[str, _Array]:
    try:
        archive = np.load(path, allow_pickle=False)
    except ValueError:  # numpy advises to load it as code
        raise ValueError("it is no archive of arrays") from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it is one array, not an archive of them")
    with archive:
        return {key: archive[key] for key in archive.files}


def _stream(name: str, path: Path) -> LocalData:
    if path.suffix == ".txt":
        tokens: _Array = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    else:
        try:
            tokens = np.load(path, allow_pickle=False, mmap_mode="r")
        except ValueError:
            raise ValueError("it is no array of numbers") from None
        if not isinstance(tokens, np.ndarray):
            raise ValueError("it is an archive, not one array")
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(
            f"--data {name}: {path} holds {tokens.dtype} of shape {tokens.shape}; give one row of integers"
        )
    if not len(tokens):
        raise InputError(f"--data {name}: {path} is empty; give some text")
    return LocalData(name, path, {}, tokens)


def _not_finite(array: _Array) -> int:
    """In how many samples there is something that is no number."""
    if not np.issubdtype(array.dtype, np.inexact) or np.isfinite(array).all():
        return 0
    return int((~np.isfinite(array)).reshape(len(array), -1).any(1).sum())


def _checked(data: LocalData) -> LocalData:
    """Arrays that go together, with at least one sample."""
    where = f"--data {data.name}: {data.path}"
    if not data.arrays:
        raise InputError(f"{where} holds no array; give {INPUT} and {LABEL}")
    for feed, array in data.arrays.items():
        if array.ndim == 0 or array.dtype == object:
            raise InputError(
                f"{where}: {feed} is {array.dtype} of shape {array.shape}; give samples along the first axis"
            )
    counts = {feed: len(array) for feed, array in data.arrays.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{feed} {count}" for feed, count in counts.items())
        raise InputError(f"{where} has different numbers of samples: {found}; make them equal")
    if not data.samples:
        raise InputError(f"{where} is empty; give at least one sample")
    return data
