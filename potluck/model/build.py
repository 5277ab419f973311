"""Model, loss and a few samples → the two programs, their facts, and the initial state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn

from potluck.errors import InputError, ModelError
from potluck.model.blocks import with_boundaries
from potluck.model.export import EvalForm, TrainForm, export_program
from potluck.model.probe import annotate, batch_norms, probe
from potluck.model.program import Program, ProgramPair

PROBE_ROWS = 4


@dataclass(frozen=True)
class BuiltModel:
    """A model ready to be planned and trained."""

    programs: ProgramPair
    state: dict[str, torch.Tensor]  # parameters and persistent buffers by their name in the programs


def as_module(model: Any) -> tuple[nn.Module, bool]:
    """The module to train and whether it was hand-cut: a module, a function that makes one, or a list of modules."""
    made = model() if callable(model) and not isinstance(model, nn.Module) else model
    if isinstance(made, nn.Module):
        return made, False
    if isinstance(made, Sequence) and made and all(isinstance(m, nn.Module) for m in made):
        return nn.Sequential(*made), True
    raise InputError(
        f"job.model: gives a {type(made).__name__}; give an nn.Module, a function that returns one, or a list of modules"
    )


def build(
    model: nn.Module,
    loss: Any,
    feeds: Mapping[str, torch.Tensor],
    weights: torch.Tensor,
    *,
    hand_cut: bool = False,
    eval_reduce: Any = None,
) -> BuiltModel:
    """The programs of a model, from at least two samples of its data (four are better)."""
    rows = len(next(iter(feeds.values())))
    if rows < 2:
        raise InputError("job.data: needs at least 2 samples to find out what the model does with a batch")
    small = {n: t[:PROBE_ROWS] for n, t in feeds.items()}
    was_training = model.training
    on_meta = any(p.is_meta for p in model.parameters())
    if on_meta:
        small = {n: t.to("meta") for n, t in small.items()}
    try:
        train = annotate(export_program(TrainForm(model.train(), loss), dict(small), "train"))
        evaluation = annotate(export_program(EvalForm(model.eval(), eval_reduce), dict(small), "eval"))
    finally:
        model.train(was_training)
    state, aliases = named_state(model)
    train, evaluation = (_canonical(p, aliases) for p in (train, evaluation))
    if not any(v.requires_grad for v in train.values.values()):
        raise ModelError("the model has no trainable parameter that the loss depends on; nothing to train")
    if on_meta:
        train = msgspec.structs.replace(train, coupled=tuple(sorted(batch_norms(train))))
    else:
        train = probe(train, state, small, weights[:PROBE_ROWS])
        evaluation = probe(evaluation, state, small, weights[:PROBE_ROWS])
    train, evaluation = with_boundaries(train, evaluation, hand_cut)
    pair = ProgramPair(train=train, eval=evaluation, aliases=aliases, torch_version=str(torch.__version__))
    return BuiltModel(programs=pair, state=state)


def named_state(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Parameters and persistent buffers under their first name, and second names → first names."""
    first: dict[int, str] = {}
    state: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            state[name] = tensor.detach()
    return state, aliases


def _canonical(program: Program, aliases: Mapping[str, str]) -> Program:
    """The program with one source per tied tensor."""
    first: dict[str, int] = {}
    moved: dict[int, int] = {}
    sources = []
    for source in program.sources:
        name = aliases.get(source.name, source.name) if source.kind in ("parameter", "buffer") else source.name
        if source.kind in ("parameter", "buffer") and name in first:
            moved[source.id] = first[name]
            continue
        first[name] = source.id
        sources.append(msgspec.structs.replace(source, name=name))
    program = msgspec.structs.replace(program, sources=tuple(sources))
    if not moved:
        return program
    nodes = tuple(msgspec.structs.replace(n, args=_move(n.args, moved), kwargs=_move_all(n.kwargs, moved)) for n in program.nodes)
    return msgspec.structs.replace(program, nodes=nodes)


def _move(args: Any, moved: Mapping[int, int]) -> Any:
    from potluck.model.program import Items, Ref

    if isinstance(args, tuple):
        return tuple(_move(a, moved) for a in args)
    if isinstance(args, Ref):
        return Ref(moved.get(args.id, args.id))
    if isinstance(args, Items):
        return Items(_move(args.items, moved))
    return args


def _move_all(kwargs: Mapping[str, Any], moved: Mapping[int, int]) -> dict[str, Any]:
    return {k: _move(a, moved) for k, a in kwargs.items()}
