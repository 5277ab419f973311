"""Model, loss and a few samples → the two programs, their facts, and the initial state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn

from potluck.advice import described, mending, one_line
from potluck.errors import InputError, ModelError, PotluckError
from potluck.model.empty import is_empty
from potluck.model.export import export_program
from potluck.model.forms import LABEL, EvalForm, TrainForm
from potluck.model.modes import modes_kept, switch_to_training
from potluck.model.outputs import OutputForm
from potluck.model.probe import annotate, probe, without_probe
from potluck.model.source_lines import raised_in
from potluck.model.trace import trace
from potluck.program.blocks import with_boundaries
from potluck.program.program import Arg, Items, Program, ProgramPair, Ref

PROBE_ROWS = 4  # samples to try a program with: enough to tell the batch from other sizes, and no work


@dataclass(frozen=True)
class BuiltModel:
    """A model ready to be planned and trained."""

    programs: ProgramPair
    state: dict[str, torch.Tensor]  # parameters and persistent buffers by their name in the programs
    outputs: OutputForm  # of evaluation


def as_module(model: Any) -> tuple[nn.Module, bool]:
    """The module to train and whether it was hand-cut: a module, a function that makes one, or a list of modules."""
    made = _call(model) if callable(model) and not isinstance(model, nn.Module) else model
    if isinstance(made, nn.Module):
        return made, False
    if isinstance(made, Sequence) and made and all(isinstance(m, nn.Module) for m in made):
        whole = nn.Sequential(*made)
        whole.training = any(module.training for piece in made for module in piece.modules())
        return whole, True
    raise InputError(
        f"job: model gives {described(made)}; give an nn.Module, a function that returns one, or a list of modules"
    )


def _call(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except PotluckError:
        raise
    except Exception as error:  # the user's function may fail in any way
        reason = one_line(error)
        raise InputError(
            f"{raised_in(error) or 'job'}: model: {getattr(make, '__name__', 'it')} fails: {reason}; "
            f"{mending(reason, 'correct that line')}"
        ) from error


def build(
    model: nn.Module,
    loss: Callable[..., Any],
    feeds: Mapping[str, torch.Tensor],
    weights: torch.Tensor,
    *,
    hand_cut: bool = False,
    eval_reduce: Callable[..., Any] | None = None,
    judged: bool = False,
) -> BuiltModel:
    """The programs of a model, from at least two samples of its data (four are better).

    With `judged`, also one that gives the loss in evaluation.
    """
    rows = len(next(iter(feeds.values())))
    if rows < 2:
        raise InputError("job.data: needs at least 2 samples to find out what the model does with a batch")
    if hand_cut and len(feeds) != 2:
        raise ModelError(
            f"a hand-cut model takes one input, the data has {len(feeds) - 1}; give one tensor, "
            "and let each module return what the next one takes"
        )
    small = {n: t[:PROBE_ROWS] for n, t in feeds.items()}
    state, aliases = named_state(model)
    train, evaluation, outputs = _export(model, loss, small, eval_reduce, hand_cut)
    train, evaluation = (_canonical(p, aliases) for p in (train, evaluation))
    changed = {u.buffer for u in train.updates}
    train, evaluation = (_with_updated(p, changed) for p in (train, evaluation))
    if not train.values[train.outputs[0]].requires_grad:
        raise ModelError("the model has no trainable parameter that the loss depends on; nothing to train")
    if is_empty(model):
        train, evaluation = without_probe(train), without_probe(evaluation)
    else:
        train = probe(train, state, small, weights[:PROBE_ROWS])
        evaluation = probe(evaluation, state, small, weights[:PROBE_ROWS])
    train, evaluation = with_boundaries(train, evaluation, hand_cut)
    judge = _judge(model, loss, small) if judged else None
    judge = judge and _canonical(judge, aliases)
    pair = ProgramPair(train=train, eval=evaluation, aliases=aliases, torch_version=str(torch.__version__), judge=judge)
    return BuiltModel(programs=pair, state=state, outputs=outputs)


def _export(
    model: nn.Module, loss: Callable[..., Any], feeds: dict[str, torch.Tensor], reduce: Any, hand_cut: bool
) -> tuple[Program, Program, OutputForm]:
    """Training, evaluation and the form of its outputs; what evaluation would do to buffers is left out."""
    with modes_kept(model):
        switch_to_training(model)
        try:
            train = annotate(export_program(TrainForm(model, loss), feeds, "train"))
        except ModelError as error:
            if hand_cut:
                _name_the_piece(model, feeds, error)
            raise
        model.eval()
        form = EvalForm(model, reduce)
        evaluation = annotate(export_program(form, feeds, "eval"))
    outputs = form.seen.form
    return train, msgspec.structs.replace(evaluation, output_names=outputs.names, updates=()), outputs


def _judge(model: nn.Module, loss: Callable[..., Any], feeds: dict[str, torch.Tensor]) -> Program | None:
    """The loss in evaluation; what that would do to buffers is left out. None where it cannot be traced."""
    with modes_kept(model), contextlib.suppress(ModelError):
        model.eval()
        found = annotate(export_program(TrainForm(model, loss), feeds, "eval"))
        if not found.values[found.outputs[0]].shape:
            return msgspec.structs.replace(found, updates=())
    return None


def _with_updated(program: Program, changed: set[str]) -> Program:
    """The program that knows which buffers training changes."""
    sources = (msgspec.structs.replace(s, updated=s.kind == "buffer" and s.name in changed) for s in program.sources)
    return msgspec.structs.replace(program, sources=tuple(sources))


def _name_the_piece(model: nn.Module, feeds: Mapping[str, torch.Tensor], error: ModelError) -> None:
    """Raises the error again with the first module of a hand-cut model that cannot be traced by itself."""
    x: Any = next(t for n, t in feeds.items() if n != LABEL)
    for index, piece in enumerate(model.children()):
        try:
            trace(_Alone(piece), {"input": x} if isinstance(x, torch.Tensor) else dict(enumerate(x)))  # type: ignore[arg-type]
            with torch.no_grad():
                x = piece(x)
        except ModelError:
            raise ModelError(f"module {index} of the list ({type(piece).__name__}): {error}") from None
        except Exception:  # it needs what the modules before it gave; the first error has to do
            raise error from None


class _Alone(nn.Module):
    """One module of a hand-cut model."""

    def __init__(self, piece: nn.Module) -> None:
        super().__init__()
        self.piece = piece

    def forward(self, feeds: dict[Any, torch.Tensor]) -> Any:
        return self.piece(feeds["input"] if "input" in feeds else tuple(feeds.values()))


def named_state(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Parameters and persistent buffers under their first name, and second names → first names."""
    first: dict[int, str] = {}
    state: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(f"{name}: the model keeps a {type(tensor).__name__} in its state; make it a buffer")
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            state[name] = tensor.detach()
    return state, aliases


def _canonical(program: Program, aliases: Mapping[str, str]) -> Program:
    """The program with one source per tied tensor, under its first name."""
    first: dict[str, int] = {}
    moved: dict[int, int] = {}
    sources = []
    for source in program.sources:
        if source.kind not in ("parameter", "buffer"):
            sources.append(source)
            continue
        name = aliases.get(source.name, source.name)
        if name in first:
            moved[source.id] = first[name]
        else:
            first[name] = source.id
            sources.append(msgspec.structs.replace(source, name=name))
    updates = (msgspec.structs.replace(u, buffer=aliases.get(u.buffer, u.buffer)) for u in program.updates)
    nodes = (
        msgspec.structs.replace(
            n,
            args=tuple(_moved(a, moved) for a in n.args),
            kwargs={k: _moved(a, moved) for k, a in n.kwargs.items()},
        )
        for n in program.nodes
    )
    return msgspec.structs.replace(
        program,
        sources=tuple(sources),
        updates=tuple(updates),
        nodes=tuple(nodes) if moved else program.nodes,
        outputs=tuple(moved.get(o, o) for o in program.outputs),
    )


def _moved(arg: Arg, moved: Mapping[int, int]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(moved.get(arg.id, arg.id))
    if isinstance(arg, Items):
        return Items(tuple(_moved(a, moved) for a in arg.items))
    return arg
