"""What is wrong with a job, found when it is made: each message names the field and what to give instead."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.advice import described, did_you_mean
from potluck.errors import InputError
from potluck.job.learning_rates import multiplier
from potluck.job.optimizers import SGD, Adagrad, Adam, AdamW, Muon, NAdam, RMSprop

if TYPE_CHECKING:
    from potluck.job.job import Job

_OPTIMIZERS = {kind.__name__: kind for kind in (SGD, Adam, AdamW, NAdam, RMSprop, Adagrad, Muon)}
_SIZES = ("batch_size", "micro_batch_size", "epochs", "rounds", "eval_every", "patience", "checkpoint_every", "keep")
_NAMED_HERE = {"torch": "nn.", "potluck": "potluck."}  # what users write before names of these packages
_OF_BOTH = "a function of (outputs, labels)"


def check(job: Job) -> None:
    """An InputError names the first thing that is wrong."""
    _check_model(job.model)
    for name, value, wanted in _functions(job):
        _check_function(name, value, wanted)
    _check_optimizer(job.optimizer)
    _check_schedule(job.schedule)
    _check_metric_names(job.metrics)
    if isinstance(job.data, str):
        _check_name(job.data, job.eval_data)
    else:
        _check_data("data", job.data)
    if job.eval_data is not None:
        _check_data("eval_data", job.eval_data)
    _check_sizes(job)
    _check_numbers(job)
    _check_evaluation(job)
    _check_choices(job)


def _is_module(value: object) -> bool:
    # Without importing torch: everything that is an nn.Module has these.
    return hasattr(value, "named_parameters") and hasattr(value, "forward") and not isinstance(value, type)


def _check_model(model: object) -> None:
    if _is_module(model):
        return
    if isinstance(model, list):
        wrong = [m for m in model if not _is_module(m)]
        if not model or wrong:
            what = f"holds {described(wrong[0])}" if wrong else "is empty"
            raise InputError(f"job: model: the list {what}; give a list of nn.Modules to run one after another")
        return
    if not callable(model):
        raise InputError(
            f"job: model is {described(model)}; "
            "give a function that returns an nn.Module, an nn.Module, or a list of them"
        )
    try:
        inspect.signature(model).bind()
    except TypeError:
        name = getattr(model, "__name__", type(model).__name__)
        raise InputError(
            f"job: model: {name} needs arguments; give a function of none, like lambda: {name}(...)"
        ) from None
    except ValueError:
        pass  # some built-in callables have no signature; calling it will tell


def _functions(job: Job) -> Iterator[tuple[str, object, str]]:
    """Everything that has to be a function: its name, what is there, and what to give."""
    yield "loss", job.loss, f"{_OF_BOTH}, like torch.nn.functional.cross_entropy"
    if job.reduce is not None:
        yield "reduce", job.reduce, _OF_BOTH
    if not isinstance(job.metrics, Mapping):
        raise InputError(
            f"job: metrics is {described(job.metrics)}; give a dict of name: function, like {{'accuracy': accuracy}}"
        )
    for name, metric in job.metrics.items():
        yield f"metrics[{name!r}]", metric, _OF_BOTH
    if not isinstance(job.callbacks, Sequence):
        raise InputError(f"job: callbacks is {described(job.callbacks)}; give a list of functions, like [note]")
    for index, callback in enumerate(job.callbacks):
        yield f"callbacks[{index}]", callback, "a function of a record"


def _check_function(name: str, value: object, wanted: str) -> None:
    """A class can be called, too, but what that gives is found to be wrong only later."""
    if isinstance(value, type):
        package = value.__module__.partition(".")[0]
        made = f"{_NAMED_HERE.get(package, '')}{value.__name__}({'' if package == 'torch' else '...'})"
        raise InputError(f"job: {name} is {described(value)}; give an instance of it, like {made}")
    if not callable(value):
        raise InputError(f"job: {name} is {described(value)}; give {wanted}")


def _check_optimizer(optimizer: object) -> None:
    if isinstance(optimizer, tuple(_OPTIMIZERS.values())):
        return
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    name = optimizer if isinstance(optimizer, str) else kind.__name__
    what = f"torch's {name}" if kind.__module__.startswith("torch.") else described(optimizer)
    same = {known.lower(): known for known in _OPTIMIZERS}.get(name.lower())
    names = ", ".join(f"potluck.{known}" for known in _OPTIMIZERS)
    raise InputError(
        f"job: optimizer is {what}; give "
        + (f"potluck.{same}(lr=...)" if same else f"one of {names}, like potluck.SGD(lr=0.1)")
    )


def _check_schedule(schedule: Callable[[int], float] | None) -> None:
    """Also that it gives a number at all."""
    kind = schedule if isinstance(schedule, type) else type(schedule)
    if kind.__module__.startswith("torch."):
        raise InputError(
            f"job: schedule is torch's {kind.__name__}; give potluck.Constant, Step, Cosine or Linear, "
            "or a function of the round that gives a multiplier of lr"
        )
    if schedule is not None:
        _check_function("schedule", schedule, "potluck.Cosine(total=...) or a function of the round")
        multiplier(schedule, 0)


def _check_metric_names(metrics: Mapping[str, object]) -> None:
    for name in metrics:
        if not isinstance(name, str) or name == "loss" or name.startswith("-"):
            raise InputError(
                f"job: metrics: {name!r} cannot be a name; give one that is not 'loss' and has no '-' first"
            )


def _check_data(name: str, data: object) -> None:
    kinds = {cls.__name__ for cls in type(data).__mro__}
    if "IterableDataset" in kinds:
        raise InputError(
            f"job: {name} is an IterableDataset, whose samples cannot be made again after a failure; "
            "give a map-style Dataset with __len__ and __getitem__"
        )
    if "DataLoader" in kinds:
        raise InputError(
            f"job: {name} is a DataLoader; give its .dataset (batch_size belongs to the Job, which shuffles)"
        )
    if isinstance(data, type):
        raise InputError(f"job: {name} is {described(data)}; give an instance, like {name}={data.__name__}(...)")
    if isinstance(data, tuple):
        _check_arrays(name, data)
    elif not (hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")):
        raise InputError(
            f"job: {name} is {described(data)}, not a data set; "
            "give a map-style Dataset with __len__ and __getitem__, or a tuple (inputs, labels) of tensors"
        )
    elif hasattr(data, "shape") or isinstance(data, Mapping) or _holds_arrays(data):
        raise InputError(f"job: {name} is {described(data)}; give a tuple (inputs, labels) of tensors, or a Dataset")
    if not len(data[0] if isinstance(data, tuple) else data):  # type: ignore[arg-type]
        raise InputError(f"job: {name} is empty; give at least one sample")


def _holds_arrays(data: object) -> bool:
    """Whether it is a list of whole tensors, where samples are wanted."""
    return isinstance(data, list) and bool(data) and hasattr(data[0], "shape")


def _check_name(name: str, eval_data: object) -> None:
    if not name.isidentifier():
        raise InputError(f"job: data {name!r} is no name of a data set; give one like 'digits', as in join --data")
    if eval_data is None:
        raise InputError(
            f"job: data {name!r} is on the devices, and eval_data is not given; "
            "give a few samples, with which the model is traced"
        )


def _check_arrays(name: str, data: tuple[Any, ...]) -> None:
    wrong = [d for d in data if not hasattr(d, "shape") or not hasattr(d, "dtype")]
    if wrong or len(data) < 2:
        what = f"holds {described(wrong[0])}" if wrong else f"has length {len(data)}"
        raise InputError(f"job: {name}: the tuple {what}; give tensors or arrays, inputs first and labels last")
    lengths = [d.shape[0] if len(d.shape) else 0 for d in data]
    if len(set(lengths)) > 1:
        raise InputError(f"job: {name}: lengths {', '.join(map(str, lengths))}; give tensors of equal length")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_sizes(job: Job) -> None:
    if (job.epochs is None) == (job.rounds is None):
        given = "neither" if job.epochs is None else "both"
        raise InputError(f"job: {given} of epochs and rounds given; give exactly one, like epochs=3")
    for name in _SIZES:
        value = getattr(job, name)
        optional = name not in ("batch_size", "keep")
        if not (value is None and optional) and not (_whole(value) and value >= 1):
            raise InputError(f"job: {name} {value!r}; give a whole number, at least 1")
    if not isinstance(job.data, str) and job.batch_size > job.sample_count:
        raise InputError(
            f"job: batch_size {job.batch_size} with {job.sample_count} samples; give at most {job.sample_count}"
        )
    if job.batch_size % job.micro_batch:
        fits = [d for d in range(1, job.batch_size + 1) if job.batch_size % d == 0]
        near = min(fits, key=lambda d: abs(d - job.micro_batch))
        raise InputError(
            f"job: micro_batch_size {job.micro_batch} does not divide batch_size {job.batch_size}; {near} would"
        )


def _check_numbers(job: Job) -> None:
    if not _whole(job.seed) or not 0 <= job.seed < 2**32:
        raise InputError(f"job: seed {job.seed!r}; give a whole number from 0 to {2**32 - 1}")
    if not _whole(job.ignore_index):
        raise InputError(f"job: ignore_index {job.ignore_index!r}; give the label that is no token, a whole number")
    norm = job.clip_norm
    if norm is not None and not ((isinstance(norm, float) or _whole(norm)) and 0 < norm < math.inf):
        raise InputError(f"job: clip_norm {norm!r}; give a finite number above 0")


def _check_evaluation(job: Job) -> None:
    if job.eval_data is None:
        for name in ("metrics", "reduce", "eval_every", "best", "patience"):
            if getattr(job, name):
                raise InputError(f"job: {name} is given but eval_data is not; give eval_data too")
    if job.best is not None and not isinstance(job.best, str):
        raise InputError(f"job: best {job.best!r}; give the name of a metric, like '-loss'")
    name, _ = job.best_metric
    if job.reduce is not None and name == "loss" and (job.best or job.patience):
        raise InputError("job: with reduce there is no evaluation loss; name a metric in best")
    if name != "loss" and name not in job.metrics:
        hint = did_you_mean(name, ("loss", *job.metrics))
        raise InputError(f"job: best {job.best!r} is no metric; {hint} (with '-' first if lower is better)")


def _check_choices(job: Job) -> None:
    if not _whole(job.staleness) or job.staleness not in (0, 1):
        raise InputError(f"job: staleness {job.staleness!r}; give 0 (every gradient is of the newest weights) or 1")
    if job.loss_weight not in ("samples", "tokens") and not callable(job.loss_weight):
        raise InputError(f"job: loss_weight {job.loss_weight!r}; give 'samples', 'tokens' or a function of the labels")
    if job.batchnorm not in ("refuse", "local"):
        raise InputError(f"job: batchnorm {job.batchnorm!r}; give 'refuse' or 'local'")
    if job.init is not None:
        path = Path(job.init) if isinstance(job.init, str | Path) else Path()
        if path.suffix != ".safetensors" or not path.is_file():
            raise InputError(
                f"job: init {str(job.init)!r} is not a .safetensors file; give its path from where you start potluck, "
                "or use Path(__file__).parent"
            )
