"""What a model returns, taken apart into tensors that travel, and made again from them: an object of its own class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from potluck.errors import ModelError

_Make = Callable[[Sequence[torch.Tensor]], Any]


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Stands where the model gave something that is no tensor, such as a cache of past keys: it does not travel."""

    what: str

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"evaluation leaves out {self.what}, which is no tensor")


class Outputs(dict[str, Any]):
    """Named outputs of a class that cannot be made from its parts, read as a dict or as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the model has no output {name!r}, only {', '.join(self)}") from None


@dataclasses.dataclass(frozen=True)
class OutputForm:
    """How a model's outputs are made of tensors."""

    names: tuple[str, ...]  # of the tensors: "" for a lone one, else keys and positions, joined by dots
    left_out: tuple[str, ...]
    make: _Make  # from as many tensors


def take_apart(outputs: Any) -> tuple[OutputForm, tuple[torch.Tensor, ...]]:
    """The form of a model's outputs, and the tensors in them."""
    apart = _Apart()
    make = apart.take(outputs, "")
    if not apart.tensors:
        raise ModelError(f"the model gives no tensor in evaluation but {described(outputs)}; return its outputs")
    return OutputForm(tuple(apart.names), tuple(apart.left_out), make), tuple(apart.tensors)


class _Apart:
    """What was found in outputs so far."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.left_out: list[str] = []

    def take(self, value: Any, name: str) -> _Make:
        """What makes this part again."""
        if isinstance(value, torch.Tensor):
            index = len(self.tensors)
            self.names.append(name)
            self.tensors.append(value)
            return lambda tensors: tensors[index]
        if value is None or isinstance(value, bool | int | float | str):
            return lambda tensors: value
        parts = parts_of(value)
        if parts is None:
            gone = LeftOut(f"{name} ({type(value).__name__})")
            self.left_out.append(gone.what)
            return lambda tensors: gone
        makes = {key: self.take(part, f"{name}.{key}" if name else str(key)) for key, part in parts.items()}
        whole = _maker(value, parts)
        return lambda tensors: whole({key: make(tensors) for key, make in makes.items()})


def parts_of(value: Any) -> dict[Any, Any] | None:
    """The fields, keys or positions of what holds others; None of what does not."""
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(zip(getattr(value, "_fields", None) or range(len(value)), value, strict=True))
    return None


def _maker(value: Any, parts: dict[Any, Any]) -> Callable[[dict[Any, Any]], Any]:
    """What makes an object of the same class from other parts: the first way that gives these parts back."""
    kind = type(value)
    ways: tuple[Callable[[dict[Any, Any]], Any], ...] = (lambda p: kind(**p), kind, lambda p: kind(tuple(p.values())))
    return next((make for make in ways if _gives_back(make, parts)), Outputs)


def _gives_back(make: Callable[[dict[Any, Any]], Any], parts: dict[Any, Any]) -> bool:
    try:
        again = parts_of(make(parts))
    except Exception:  # a class of the user's may want anything
        return False
    return again is not None and [*again] == [*parts] and all(again[key] is parts[key] for key in parts)


def described(outputs: Any) -> str:
    """The class of outputs and what they hold."""
    held = [str(key) for key, part in (parts_of(outputs) or {}).items() if part is not None]
    return f"a {type(outputs).__name__}" + (f" ({', '.join(held)})" if held else "")
