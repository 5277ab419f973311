"""Which optimizer a job wants, as names and numbers: no torch, so a spec can travel and be written down.

`compute/stage_optimizer.py` turns a spec into torch.optim. Which parameters a group means: `parameter_groups.py`.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from potluck.advice import NamedFields, described
from potluck.errors import InputError
from potluck.types import Value

NORMS = ":norms"  # 1-D weights of normalisation layers
BIASES = ":biases"  # parameters called bias, or something_bias
SPECIAL = (NORMS, BIASES)

AdjustLr = Literal["original", "match_rms_adamw"]  # how Muon scales its rate by the shape of a matrix

_FLAGS = ("nesterov", "amsgrad", "centered", "decoupled_weight_decay", "discounted")
_NO_NUMBERS = ("groups", "betas", "match", "rest", "adjust_lr_fn", *_FLAGS)
# No group may change these: torch reads the first from the optimizer, never from a group; one is a whole number.
_OF_ALL = ("initial_accumulator_value", "ns_steps", "feedback")


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


class OptimizerSpec(Value, frozen=True, kw_only=True, metaclass=NamedFields):
    """What all optimizers share.

    `feedback` f corrects a step for the one before, which was taken by a gradient that came a step late: what the new
    gradient shows to have been wrong with that one is added, times f, so the optimizer sees

        g(r) + f (g(r) - g(r-1))

    and the very first gradient as it is. With f = 1 this is the gradient at the newest weights, to first order. It
    costs one more tensor like each parameter. It lets momentum take higher rates with late gradients; it is no remedy
    for noise, of which independent samples bring (1 + f)² + f² times as much, nor for SGD without momentum, whose
    highest rate f = 1 makes lower (f = 1/8 converges fastest on a quadratic). In lock-step leave it at 0.
    """

    lr: float
    weight_decay: float = 0.0
    groups: tuple[ParamGroup, ...] = ()
    feedback: float = 0.0

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


class SGD(OptimizerSpec, frozen=True, kw_only=True, tag=True):
    """Stochastic gradient descent, as torch.optim.SGD.

    `discounted` is Nesterov's method for gradients that come late (Ajanthan et al., ICML 2025). With weights w, their
    last change d(t) = w(t) - w(t-1), momentum m and the gradient g that is at hand, taken where w + m d was then:

        w(t+1) = w(t) + m d(t) - lr (1 - m) g

    What is trained here is the point ahead, x(t) = w(t) + m d(t), as in torch. In those terms, with a buffer b,

        b = m b + g,   x(t+1) = x(t) - lr (1 - m) (g + m b)

    which is torch's nesterov with the rate lr (1 - m). So it is no other method, only a rate that stays right as
    momentum nears 1, where momentum bears delay best; the buffer is a mean of gradients times 1 / (1 - m).
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    discounted: bool = False  # multiply lr by (1 - momentum)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InputError("optimizer SGD: nesterov=True; give a momentum above 0 and no dampening")
        momenta = (self.momentum, *(g.overrides["momentum"] for g in self.groups if "momentum" in g.overrides))
        if self.discounted and not (self.nesterov and all(0 < m < 1 for m in momenta)):
            raise InputError(
                "optimizer SGD: discounted=True; give nesterov=True and momentum between 0 and 1, like 0.9"
            )


class Adam(OptimizerSpec, frozen=True, kw_only=True, tag=True):
    """Adam, as torch.optim.Adam."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self, self.betas)


class AdamW(OptimizerSpec, frozen=True, kw_only=True, tag=True):
    """Adam with decoupled weight decay, as torch.optim.AdamW."""

    lr: float = 1e-3
    weight_decay: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self, self.betas)


class NAdam(OptimizerSpec, frozen=True, kw_only=True, tag=True):
    """Adam with Nesterov's momentum, as torch.optim.NAdam, but that weight decay is decoupled unless told otherwise.

    It bears gradients that are one step late better than Adam does.
    """

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_betas(self, self.betas)


class RMSprop(OptimizerSpec, frozen=True, kw_only=True, tag=True):
    """RMSprop, as torch.optim.RMSprop."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False


class Adagrad(OptimizerSpec, frozen=True, kw_only=True, tag=True):
    """Adagrad, as torch.optim.Adagrad."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0


class Muon(OptimizerSpec, frozen=True, kw_only=True, tag=True):
    """Momentum made orthogonal, as torch.optim.Muon, for matrices in the middle of a model; AdamW for the rest.

    `lr` and `weight_decay` are those of the matrices, and so are `groups`; `rest` has its own.
    """

    lr: float = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: AdjustLr = "original"
    match: tuple[str, ...] = ()  # fnmatch patterns on names of matrices; none: see `matrices` in parameter_groups.py
    rest: AdamW = msgspec.field(default_factory=AdamW)

    def __post_init__(self) -> None:
        super().__post_init__()
        match = (self.match,) if isinstance(self.match, str) else tuple(self.match)
        msgspec.structs.force_setattr(self, "match", match)
        if not isinstance(self.rest, AdamW):
            raise InputError(f"optimizer Muon: rest is {described(self.rest)}; give potluck.AdamW(...)")
        if self.adjust_lr_fn not in get_args(AdjustLr):
            known = " or ".join(repr(name) for name in get_args(AdjustLr))
            raise InputError(f"optimizer Muon: adjust_lr_fn {self.adjust_lr_fn!r}; give {known}")
        if not isinstance(self.ns_steps, int) or not 1 <= self.ns_steps < 100:
            raise InputError(f"optimizer Muon: ns_steps {self.ns_steps!r}; give a whole number from 1 to 99")
        for pattern in (*match, *(pattern for group in self.groups for pattern in group.match)):
            if pattern in SPECIAL:
                raise InputError(
                    f"optimizer Muon: match {pattern!r} means no matrices; give it in rest=potluck.AdamW(groups=...)"
                )


Optimizer = SGD | Adam | AdamW | NAdam | RMSprop | Adagrad | Muon


def overridable(spec: OptimizerSpec) -> tuple[str, ...]:
    """Names of the hyper-parameters a group may change."""
    return tuple(f for f in spec.__struct_fields__ if f not in (*_NO_NUMBERS, *_OF_ALL))


def base_rate(spec: Optimizer, overrides: dict[str, float]) -> float:
    """The learning rate that torch is given for a group, where the multiplier of a round is 1."""
    rate = overrides.get("lr", spec.lr)
    if isinstance(spec, SGD) and spec.discounted:
        return rate * (1 - overrides.get("momentum", spec.momentum))
    return rate


def rule_for(spec: Optimizer, parameter: str) -> Optimizer:
    """What trains this parameter: the optimizer itself, or with Muon the AdamW of the rest."""
    if not isinstance(spec, Muon):
        return spec
    if not spec.match:
        raise ValueError("optimizer Muon: its matrices are not resolved; call resolve(spec, module)")
    return spec if parameter in spec.match else spec.rest


def _name(spec: OptimizerSpec) -> str:
    return type(spec).__name__


def _check_numbers(spec: OptimizerSpec) -> None:
    for field in spec.__struct_fields__:
        if field in _FLAGS and not isinstance(getattr(spec, field), bool):
            raise InputError(f"optimizer {_name(spec)}: {field} {getattr(spec, field)!r}; give True or False")
        if field not in _NO_NUMBERS:
            _check_number(f"optimizer {_name(spec)}: {field}", getattr(spec, field))


def _check_number(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} {value!r}; give a number")
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{what} {value}; give a finite number, 0 or more")


def _check_betas(spec: OptimizerSpec, betas: tuple[float, float]) -> None:
    pair = isinstance(betas, tuple | list) and len(betas) == 2 and all(isinstance(beta, int | float) for beta in betas)
    if pair:
        msgspec.structs.force_setattr(spec, "betas", tuple(betas))
    if not pair or not all(0 <= beta < 1 for beta in betas):
        raise InputError(f"optimizer {_name(spec)}: betas {betas}; give two numbers, each at least 0 and below 1")
