"""Which optimizer a job wants, as names and numbers: no torch, so a spec can travel and be written down.

`compute/stage_optimizer.py` turns a spec into torch.optim. Parameters are put into groups by name: the first group
with a matching pattern wins, and a parameter that no group matches keeps the optimizer's own numbers.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from potluck.advice import NamedFields, described
from potluck.errors import InputError
from potluck.types import Value

if TYPE_CHECKING:
    from torch import nn

NORMS = ":norms"  # 1-D weights of normalisation layers
BIASES = ":biases"  # parameters called bias, or something_bias
SPECIAL = (NORMS, BIASES)


class ParamGroup(Value, frozen=True, kw_only=True, metaclass=NamedFields):
    """Parameters, chosen by name, whose hyper-parameters differ from the optimizer's own."""

    match: tuple[str, ...]  # fnmatch patterns on parameter names, ":norms" or ":biases"
    overrides: dict[str, float]  # hyper-parameter → number

    def __post_init__(self) -> None:
        # People write one pattern without the comma of a tuple; a bare string would be taken letter by letter.
        patterns = (self.match,) if isinstance(self.match, str) else tuple(self.match)
        msgspec.structs.force_setattr(self, "match", patterns)
        if not patterns:
            raise InputError("optimizer group: match is empty; give at least one parameter name or pattern")
        for pattern in patterns:
            if pattern.startswith(":") and pattern not in SPECIAL:
                raise InputError(f"optimizer group: match {pattern!r} is not known; give one of {', '.join(SPECIAL)}")


class _Spec(Value, frozen=True, kw_only=True, metaclass=NamedFields):
    """What all optimizers share."""

    lr: float
    weight_decay: float = 0.0
    groups: tuple[ParamGroup, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "groups", tuple(self.groups))
        _check_numbers(self)
        allowed = overridable(self)
        for index, group in enumerate(self.groups):
            if not isinstance(group, ParamGroup):
                raise InputError(
                    f"optimizer {_name(self)}: groups[{index}] is {described(group)}; "
                    "give potluck.ParamGroup(match=..., overrides={...})"
                )
            for key, value in group.overrides.items():
                if key not in allowed:
                    raise InputError(
                        f"optimizer {_name(self)}: group override {key!r} is not known; "
                        f"give one of {', '.join(allowed)}"
                    )
                _check_number(f"optimizer {_name(self)}: group override {key}", value)


class SGD(_Spec, frozen=True, kw_only=True, tag=True):
    """Stochastic gradient descent, as torch.optim.SGD."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InputError("optimizer SGD: nesterov=True; give a momentum above 0 and no dampening")


class _OfMoments(_Spec, frozen=True, kw_only=True):
    """What both kinds of Adam share."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self, self.betas)


class Adam(_OfMoments, frozen=True, kw_only=True, tag=True):
    """Adam, as torch.optim.Adam."""


class AdamW(_OfMoments, frozen=True, kw_only=True, tag=True):
    """Adam with decoupled weight decay, as torch.optim.AdamW."""

    weight_decay: float = 1e-2


class RMSprop(_Spec, frozen=True, kw_only=True, tag=True):
    """RMSprop, as torch.optim.RMSprop."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False


class Adagrad(_Spec, frozen=True, kw_only=True, tag=True):
    """Adagrad, as torch.optim.Adagrad."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0


Optimizer = SGD | Adam | AdamW | RMSprop | Adagrad
OptimizerT = TypeVar("OptimizerT", bound=_Spec)


def overridable(spec: _Spec) -> tuple[str, ...]:
    """Names of the hyper-parameters a group may change."""
    # torch's Adagrad reads its initial value from the optimizer, never from a group.
    fixed = ("groups", "initial_accumulator_value")
    return tuple(f for f in spec.__struct_fields__ if f not in fixed and type(getattr(spec, f)) in (int, float))


def slot_names(spec: Optimizer, overrides: dict[str, float] | None = None) -> tuple[str, ...]:
    """State tensors, shaped like their parameter, that the optimizer keeps for each parameter of a group."""
    momentum = (overrides or {}).get("momentum", getattr(spec, "momentum", 0.0))
    match spec:
        case SGD():
            return ("momentum_buffer",) if momentum else ()
        case Adam() | AdamW():
            return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if spec.amsgrad else ()))
        case RMSprop():
            return (
                "square_avg",
                *(("momentum_buffer",) if momentum > 0 else ()),
                *(("grad_avg",) if spec.centered else ()),
            )
        case Adagrad():
            return ("sum",)


def slots(spec: Optimizer) -> int:
    """State tensors per trainable parameter; the most of any group."""
    return max(len(slot_names(spec, overrides)) for overrides in ({}, *(g.overrides for g in spec.groups)))


def group_index(spec: Optimizer, parameter: str) -> int | None:
    """Index of the first group that matches the parameter's name, or None. Special patterns must be resolved first."""
    for index, group in enumerate(spec.groups):
        for pattern in group.match:
            if pattern in SPECIAL:
                raise ValueError(f"optimizer group {index}: {pattern!r} is not resolved; call resolve(spec, module)")
            # A resolved name may itself hold characters that mean something to fnmatch.
            if _matches(parameter, pattern):
                return index
    return None


def resolve(spec: OptimizerT, module: nn.Module) -> OptimizerT:
    """The same spec with every pattern replaced by the names of the module's parameters it means."""
    first = {id(p): name for name, p in reversed(list(module.named_parameters(remove_duplicate=False)))}
    aliases = [(name, first[id(p)]) for name, p in module.named_parameters(remove_duplicate=False)]
    special = {NORMS: set(_norm_weights(module)), BIASES: {n for n, _ in aliases if n.endswith("bias")}}
    taken: set[str] = set()
    groups = []
    for index, group in enumerate(spec.groups):
        names: dict[str, None] = {}
        for pattern in group.match:
            found = [
                owner
                for name, owner in aliases
                if (name in special[pattern] if pattern in special else _matches(name, pattern))
            ]
            if not found and pattern not in special:
                raise InputError(
                    f"optimizer group {index}: match {pattern!r} fits no parameter; "
                    f"names look like {_examples(aliases)}"
                )
            names.update(dict.fromkeys(owner for owner in found if owner not in taken))
        taken.update(names)
        if names:  # a special pattern may fit nothing: a model without biases is no mistake
            groups.append(msgspec.structs.replace(group, match=tuple(names)))
    return msgspec.structs.replace(spec, groups=tuple(groups))


def _norm_weights(module: nn.Module) -> Iterator[str]:
    for prefix, layer in module.named_modules():
        if any("norm" in cls.__name__.lower() for cls in type(layer).__mro__):
            for name, parameter in layer.named_parameters(recurse=False):
                if parameter.ndim == 1 and not name.endswith("bias"):
                    yield f"{prefix}.{name}" if prefix else name


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _examples(aliases: list[tuple[str, str]]) -> str:
    return ", ".join(repr(name) for name, _ in aliases[:3]) or "(the model has none)"


def _name(spec: _Spec) -> str:
    return type(spec).__name__


def _check_numbers(spec: _Spec) -> None:
    for field in spec.__struct_fields__:
        if field not in ("groups", "betas", "nesterov", "amsgrad", "centered"):
            _check_number(f"optimizer {_name(spec)}: {field}", getattr(spec, field))


def _check_number(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} {value!r}; give a number")
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{what} {value}; give a finite number, 0 or more")


def _check_betas(spec: _Spec, betas: tuple[float, float]) -> None:
    pair = isinstance(betas, tuple | list) and len(betas) == 2 and all(isinstance(beta, int | float) for beta in betas)
    if pair:
        msgspec.structs.force_setattr(spec, "betas", tuple(betas))
    if not pair or not all(0 <= beta < 1 for beta in betas):
        raise InputError(f"optimizer {_name(spec)}: betas {betas}; give two numbers, each at least 0 and below 1")
