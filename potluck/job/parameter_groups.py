"""Which parameters of a model the groups of an optimizer mean: patterns become names, once, on the coordinator.

The first group with a matching pattern wins, and a parameter that no group matches keeps the optimizer's own numbers.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from potluck.errors import InputError
from potluck.job.optimizers import BIASES, NORMS, SPECIAL, OptimizerSpec

if TYPE_CHECKING:
    from torch import nn

SpecT = TypeVar("SpecT", bound=OptimizerSpec)


def group_index(spec: OptimizerSpec, parameter: str) -> int | None:
    """Index of the first group that matches the parameter's name, or None. Special patterns must be resolved first."""
    for index, group in enumerate(spec.groups):
        for pattern in group.match:
            if pattern in SPECIAL:
                raise ValueError(f"optimizer group {index}: {pattern!r} is not resolved; call resolve(spec, module)")
            # A resolved name may itself hold characters that mean something to fnmatch.
            if parameter == pattern or fnmatch.fnmatchcase(parameter, pattern):
                return index
    return None


def resolve(spec: SpecT, module: nn.Module) -> SpecT:
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
