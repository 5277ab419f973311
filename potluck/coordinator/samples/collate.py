"""From samples to one tensor per feed, each in its own dtype.

A sample is (inputs, labels). Inputs are one value ("input"), a tuple of them ("input0", "input1", …) or a dict (its
keys); a longer tuple (a, b, …, labels) is read as ((a, b, …), labels). Tensors and arrays keep their dtype; Python ints
become int64 and floats torch's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from potluck.advice import described
from potluck.errors import InputError
from potluck.job.job import Pad

INPUT = "input"
LABEL = "label"


def split_sample(sample: Any) -> dict[str, torch.Tensor]:
    """The feeds of one sample by name, inputs first and labels last."""
    if not isinstance(sample, tuple | list) or len(sample) < 2:
        raise InputError(f"it is {described(sample)}, not (inputs, labels); return a tuple of the two")
    inputs = sample[0] if len(sample) == 2 else tuple(sample[:-1])
    named = {name: _tensor(name, value) for name, value in _named(inputs).items()}
    return {**named, LABEL: _tensor(LABEL, sample[-1])}


def batch_of_arrays(data: tuple[Any, ...], ids: Sequence[int]) -> dict[str, torch.Tensor]:
    """The feeds of a batch taken at once from tensors or arrays whose first axis is the sample."""
    index = np.asarray(ids, dtype=np.int64)
    taken = []
    for array in data:
        if isinstance(array, torch.Tensor):
            taken.append(array.detach().index_select(0, torch.from_numpy(index).to(array.device)).cpu())
        else:
            taken.append(_from_numpy("data", np.asarray(array)[index]))
    return {**_named(tuple(taken[:-1])), LABEL: taken[-1]}


def collate(samples: Sequence[dict[str, torch.Tensor]], ids: Sequence[int], pad: Pad | None) -> dict[str, torch.Tensor]:
    """One tensor per feed with the samples along a new first axis; all samples must agree in names, shape and dtype."""
    first = samples[0]
    for sample, i in zip(samples, ids, strict=True):
        if sample.keys() != first.keys():
            raise InputError(
                f"data: sample {ids[0]} has {', '.join(first)} but sample {i} has {', '.join(sample)}; "
                "give every sample the same fields"
            )
    return {name: _stack(name, [s[name] for s in samples], ids, pad) for name in first}


def _named(inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, dict):
        wrong = [key for key in inputs if not isinstance(key, str) or key == LABEL]
        if wrong or not inputs:
            raise InputError(f"its inputs have keys {list(inputs)}; give at least one, all strings and none {LABEL!r}")
        return dict(inputs)
    if isinstance(inputs, tuple):
        return {INPUT: inputs[0]} if len(inputs) == 1 else {f"{INPUT}{i}": value for i, value in enumerate(inputs)}
    return {INPUT: inputs}


def _tensor(name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ndarray | np.generic):
        return _from_numpy(name, np.array(value))
    if isinstance(value, bool | int | float):
        return torch.tensor(value)
    if isinstance(value, list):
        return torch.tensor(value)
    raise InputError(f"its {name} is {described(value)}; give a tensor, an array or a number")


def _from_numpy(name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    except TypeError:
        raise InputError(f"{name}: an array of dtype {array.dtype} cannot become a tensor; give numbers") from None


def _stack(name: str, values: list[torch.Tensor], ids: Sequence[int], pad: Pad | None) -> torch.Tensor:
    if pad is not None:
        values = [_padded(name, value, i, pad) for value, i in zip(values, ids, strict=True)]
    for value, i in zip(values, ids, strict=True):
        if value.shape != values[0].shape:
            raise InputError(
                f"data: {name} of sample {ids[0]} has shape {tuple(values[0].shape)} but of sample {i} "
                f"{tuple(value.shape)}; make them equal, or set pad=potluck.Pad(length=...)"
            )
        if value.dtype != values[0].dtype:
            raise InputError(
                f"data: {name} of sample {ids[0]} is {values[0].dtype} but of sample {i} {value.dtype}; make them equal"
            )
    return torch.stack(values)


def _padded(name: str, value: torch.Tensor, sample: int, pad: Pad) -> torch.Tensor:
    if name == LABEL:
        fill = pad.label_value
    else:
        fill = pad.value if isinstance(pad.value, int | float) else pad.value.get(name)
    if fill is None or value.ndim == 0:
        return value
    missing = pad.length - value.shape[0]
    if missing < 0:
        raise InputError(
            f"data: {name} of sample {sample} has length {value.shape[0]} but pad says {pad.length}; "
            "shorten the sample, or raise Pad(length=...)"
        )
    return functional.pad(value, (0, 0) * (value.ndim - 1) + (0, missing), value=fill)
