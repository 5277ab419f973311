"""The two functions that are traced: feeds → loss, and feeds → outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from potluck.errors import ModelError
from potluck.model.outputs import OutputForm, take_apart
from potluck.model.source_lines import calling_line
from potluck.model.user_functions import call_function

LABEL = "label"


def call_model(model: nn.Module, feeds: Mapping[str, torch.Tensor]) -> Any:
    """The model's outputs: one tensor positionally, input0, input1, … positionally, other names as keywords."""
    names = [n for n in feeds if n != LABEL]
    if names == ["input"]:
        return model(feeds["input"])
    if names == [f"input{i}" for i in range(len(names))]:
        return model(*(feeds[n] for n in names))
    return model(**{n: feeds[n] for n in names})


class TrainForm(nn.Module):
    """Model and loss as one function of the feeds."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, feeds: dict[str, torch.Tensor]) -> Any:
        with _traceable():
            return call_function("loss", self.loss, call_model(self.model, feeds), feeds[LABEL])


class EvalForm(nn.Module):
    """The model's outputs, or what `reduce` makes of them and the labels, as a flat tuple."""

    def __init__(self, model: nn.Module, reduce: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.model = model
        self.reduce = reduce
        self.seen = _Seen()

    def forward(self, feeds: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with _traceable():
            outputs = call_model(self.model, feeds)
            if self.reduce is not None:
                outputs = call_function("reduce", self.reduce, outputs, feeds[LABEL])
        self.seen.form, tensors = take_apart(outputs)
        return tensors


class _Seen:
    """The form of the outputs, found while tracing. Not a plain attribute: torch.export undoes those."""

    form: OutputForm


@contextmanager
def _traceable() -> Iterator[None]:
    """Within, two things that torch.export would get wrong without a word are put right, or said."""
    assign, length = nn.Module.__setattr__, torch.Tensor.__len__

    def copy(module: nn.Module, name: str, value: Any) -> None:
        """`self.buffer = x` copies x into the buffer: torch.export sees copies, and loses assignments."""
        buffer = module.__dict__.get("_buffers", {}).get(name)
        if buffer is None or not isinstance(value, torch.Tensor) or value is buffer:
            assign(module, name, value)
        elif value.shape != buffer.shape:
            raise ModelError(
                f"{type(module).__name__}.{name}: the forward gives this buffer another shape, {tuple(value.shape)} "
                f"for {tuple(buffer.shape)}; a buffer must keep its shape"
            )
        else:
            buffer.copy_(value)

    def check(tensor: torch.Tensor) -> int:
        """`len(x)` is always a plain number, so it would fix the batch size."""
        if tensor.dim() and isinstance(tensor.shape[0], torch.SymInt):
            raise ModelError(f"{calling_line()}: len(…) of a tensor fixes the batch size; write x.shape[0]")
        return length(tensor)  # type: ignore[no-any-return, no-untyped-call]

    nn.Module.__setattr__ = copy  # type: ignore[method-assign, assignment]
    torch.Tensor.__len__ = check  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__setattr__ = assign  # type: ignore[method-assign]
        torch.Tensor.__len__ = length  # type: ignore[method-assign]
