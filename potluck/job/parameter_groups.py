"""Which parameters of a model the groups of an optimizer mean: patterns become names, once, on the coordinator.

The first group with a matching pattern wins, and a parameter that no group matches keeps the optimizer's own numbers.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from potluck.errors import InputError
from potluck.job.optimizers import BIASES, NORMS, SPECIAL, Muon, OptimizerSpec

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
    if not isinstance(spec, Muon):
        return _with_names(spec, module, aliases)
    match = matrices(spec, module, aliases)
    named = _with_names(spec, module, [(name, owner) for name, owner in aliases if owner in match])
    rest = _with_names(spec.rest, module, [(name, owner) for name, owner in aliases if owner not in match])
    return msgspec.structs.replace(named, match=match, rest=rest)


def _with_names(spec: SpecT, module: nn.Module, aliases: list[tuple[str, str]]) -> SpecT:
    """The groups by names, among these parameters: (any of its names, its first name)."""
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


def matrices(spec: Muon, module: nn.Module, aliases: list[tuple[str, str]]) -> tuple[str, ...]:
    """Names of the weights that Muon trains: two axes, and what `match` says.

    Without `match`, all weights with two axes but those of embeddings and of the last layer (in the order in which a
    module lists its parts) that has one. Whatever is no weight of a layer by its name, as a table of positions that
    is a bare parameter, is left to the rest.
    """
    flat = [name for name, p in module.named_parameters() if p.ndim == 2 and p.requires_grad]
    if spec.match:
        found: dict[str, None] = {}
        for pattern in spec.match:
            fits = [owner for name, owner in aliases if _matches(name, pattern) and owner in flat]
            if not fits:
                raise InputError(
                    f"optimizer Muon: match {pattern!r} fits no parameter with two axes that is trained; "
                    f"names of such look like {', '.join(repr(n) for n in flat[:3]) or '(the model has none)'}"
                )
            found.update(dict.fromkeys(fits))
        return tuple(found)
    owners = dict(aliases)
    tables = {owners[name] for name in _weights_of(module, embeddings=True)}
    layers = [owners[name] for name in _weights_of(module, embeddings=False)]
    hidden = tuple(name for name in flat if name in layers and name not in (*tables, *layers[-1:]))
    if not hidden:
        raise InputError(
            "optimizer Muon: the model has no matrix between its embeddings and its last layer; "
            "give match=(...) with names of weights that have two axes, or take potluck.NAdam"
        )
    return hidden


def _weights_of(module: nn.Module, *, embeddings: bool) -> list[str]:
    """Names of weights with two axes, of embeddings or of all other layers, in the order of the modules."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if any("Embedding" in cls.__name__ for cls in type(layer).__mro__) == embeddings
        for name, parameter in layer.named_parameters(recurse=False)
        if parameter.ndim == 2 and "weight" in name
    ]


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
