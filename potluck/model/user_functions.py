"""The user's functions of (outputs, labels): the loss, `reduce` and the metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.nn import functional

from potluck.advice import one_line
from potluck.errors import ModelError
from potluck.model.outputs import described, parts_of

Field = Literal["loss", "reduce", "metric"]


def call_function(field: Field, function: Callable[..., Any], outputs: Any, labels: torch.Tensor) -> Any:
    """What it gives. Where it takes an object of several outputs for a tensor, a ModelError that says what to write."""
    try:
        return function(outputs, labels)
    except (TypeError, AttributeError) as error:
        if isinstance(outputs, torch.Tensor) or type(outputs).__name__ not in str(error):
            raise
        reason = one_line(error)
        instead = _instead(field, function, outputs, labels)
        raise ModelError(
            f"the model returns {described(outputs)}; take what the {field} needs: {instead} ({reason})"
        ) from error


def _instead(field: Field, function: Callable[..., Any], outputs: Any, labels: torch.Tensor) -> str:
    """The same function of the logits, or of the first tensor there is."""
    parts = parts_of(outputs) or {}
    key = next((k for k in ("logits", *parts) if isinstance(parts.get(k), torch.Tensor)), 0)
    attribute = isinstance(key, str) and getattr(outputs, key, None) is parts[key]
    taken = f"outputs.{key}" if attribute else f"outputs[{key!r}]"
    name = _written(function)
    if name is None:
        return taken
    if function is functional.cross_entropy and parts[key].dim() == 3 and labels.dim() == 2:
        return f"{field}=lambda outputs, labels: {name}({taken}.flatten(0, 1), labels.flatten())"
    return f"{'' if field == 'metric' else field + '='}lambda outputs, labels: {name}({taken}, labels)"


def _written(function: Callable[..., Any]) -> str | None:
    """How a function is written in a call; None where it has no name."""
    if isinstance(function, torch.nn.Module):
        return f"nn.{type(function).__name__}()"
    name = getattr(function, "__name__", "<lambda>")
    return None if name == "<lambda>" else f"F.{name}" if hasattr(functional, name) else name
