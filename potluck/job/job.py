"""What a user wants trained: a `Job`, validated when it is made, and `load_job`, which reads one from a file."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from potluck.errors import InputError
from potluck.job.learning_rates import LearningRate
from potluck.job.optimizers import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

if TYPE_CHECKING:
    import torch
    from torch import nn

LARGEST_CHOSEN_MICRO_BATCH = 32


class Samples(Protocol):
    """A map-style data set: sample i is (inputs, labels)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Pad:
    """Samples of different lengths are filled up, at the end of their first axis, to a declared length.

    Inputs and labels without any axis (a class number) are left alone.
    """

    length: int  # the longest sample; a longer one is an error
    value: float | Mapping[str, float] = 0  # what fills inputs; a mapping from input name pads only the inputs it names
    label_value: float | None = -100  # what fills labels; None leaves them alone

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"job: pad: length {self.length}; give the length of the longest sample")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be trained, on what, and how."""

    model: Callable[[], nn.Module] | nn.Module | list[nn.Module]  # a list is run one after another: cut by hand
    loss: Callable[..., torch.Tensor]  # (outputs, labels) → mean over the samples, a scalar
    optimizer: Optimizer
    # Map-style data set, tensors/arrays of equal length of which the last is labels, or the name of what devices own.
    data: Samples | tuple[Any, ...] | str
    eval_data: Samples | tuple[Any, ...] | None = None
    batch_size: int  # samples of a round
    micro_batch_size: int | None = None  # a divisor of batch_size; None: see `choose_micro_batch`
    epochs: int | None = None  # exactly one of epochs and rounds
    rounds: int | None = None
    seed: int = 0
    schedule: LearningRate | Callable[[int], float] | None = None  # round → multiplier of the base learning rate
    clip_norm: float | None = None  # largest norm of the whole gradient
    metrics: Mapping[str, Callable[[Any, Any], float]] = field(default_factory=dict)  # over the whole evaluation set
    reduce: Callable[[Any, Any], Any] | None = None  # (outputs, labels) → rows for the metrics, run on the devices
    eval_every: int | None = None  # rounds; None: after each epoch
    best: str | None = None  # what decides the best checkpoint: "accuracy", or "-loss" where lower is better
    patience: int | None = None  # evaluations without a better one before training stops
    loss_weight: Literal["samples", "tokens"] | Callable[[torch.Tensor], torch.Tensor] = "samples"
    ignore_index: int = -100  # the label that does not count as a token
    init: str | Path | None = None  # safetensors file with the weights to start from
    callbacks: Sequence[Callable[[Any], None]] = ()  # called on the coordinator with every record
    checkpoint_every: int | None = None  # rounds; None: after each epoch
    keep: int = 3  # checkpoints, besides the best one
    pad: Pad | None = None
    batchnorm: Literal["refuse", "local"] = "refuse"  # "local": a stage with BatchNorm may be split by samples
    kernels: Literal["quick", "torch"] = "quick"  # "torch": those that the plain module takes, with its last bits

    def __post_init__(self) -> None:
        _check_model(self.model)
        _check_callables(self)
        _check_optimizer(self.optimizer)
        if isinstance(self.data, str):
            _check_name(self.data, self.eval_data)
        else:
            _check_data("data", self.data)
        if self.eval_data is not None:
            _check_data("eval_data", self.eval_data)
        _check_sizes(self)
        _check_evaluation(self)
        _check_choices(self)

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch: as given, else chosen."""
        return self.micro_batch_size or choose_micro_batch(self.batch_size)

    @property
    def sample_count(self) -> int:
        """Samples of the training data; 0 where devices own it."""
        return 0 if isinstance(self.data, str) else count(self.data)

    @property
    def best_metric(self) -> tuple[str, bool]:
        """What decides the best checkpoint, and whether higher is better. The evaluation loss unless told otherwise."""
        name = self.best or "-loss"
        return name.removeprefix("-"), not name.startswith("-")


def count(data: Samples | tuple[Any, ...]) -> int:
    """How many samples a data set holds."""
    return len(data[0]) if isinstance(data, tuple) else len(data)


def choose_micro_batch(batch_size: int) -> int:
    """The micro-batch size used when the job names none.

    The largest divisor of the batch size that is at most 32 and leaves at least four micro-batches (two samples where
    the batch is smaller than eight). A batch of up to 32 that only 1 would divide stays whole.
    """
    if batch_size == 1:
        return 1
    most = min(LARGEST_CHOSEN_MICRO_BATCH, max(2, batch_size // 4))
    divisors = [d for d in range(2, most + 1) if batch_size % d == 0]
    if divisors:
        return divisors[-1]
    if batch_size <= LARGEST_CHOSEN_MICRO_BATCH:
        return batch_size
    raise InputError(
        f"job: batch_size {batch_size} has no divisor from 2 to {LARGEST_CHOSEN_MICRO_BATCH}; "
        f"give {batch_size - 1} or {batch_size + 1}, or set micro_batch_size"
    )


def load_job(path: str | Path) -> Job:
    """The job of a Python file: its name `job`, or another one given as `path.py:name`."""
    file, name = _split(str(path))
    if not file.is_file():
        raise InputError(f"{file}: no such file; give the Python file that defines your job")
    module = _run(file.resolve())
    if not hasattr(module, name):
        jobs = [key for key, value in vars(module).items() if isinstance(value, Job)]
        fix = f"use {file}:{jobs[0]}" if jobs else f"add {name} = potluck.Job(...)"
        raise InputError(f"{file}: defines no {name!r}; {fix}")
    job = getattr(module, name)
    if not isinstance(job, Job):
        raise InputError(f"{file}: {name} is a {type(job).__name__}, not a Job; make it with potluck.Job(...)")
    return job


def _split(path: str) -> tuple[Path, str]:
    head, _, tail = path.rpartition(":")
    return (Path(head), tail) if head.endswith(".py") and tail.isidentifier() else (Path(path), "job")


_PACKAGE = Path(__file__).resolve().parents[1]


def _run(file: Path) -> ModuleType:
    """The user's file as a module; whatever goes wrong in it becomes one line naming the file and the line."""
    name = f"potluck_job_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: not a Python file; give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up here
    # Neighbours can be imported, but not those of the demo's job: modules of ours would hide others of their names.
    if str(file.parent) not in sys.path and _PACKAGE not in file.resolve().parents:
        sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may fail in any way
        sys.modules.pop(name, None)
        raise InputError(_where(file, error)) from error
    return module


def _where(file: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        place, line = error.filename, error.lineno
        message = f"{type(error).__name__}: {error.msg}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename == str(file)] or list(frames)
        place, line = own[-1].filename, own[-1].lineno
        # Our own messages say it all; the name of the class would only be in the way.
        message = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return " ".join(f"{place}, line {line}: {message}".split())


def _is_module(value: object) -> bool:
    # Without importing torch: everything that is an nn.Module has these.
    return hasattr(value, "named_parameters") and hasattr(value, "forward") and not isinstance(value, type)


def _check_model(model: object) -> None:
    if _is_module(model):
        return
    if isinstance(model, list):
        wrong = [m for m in model if not _is_module(m)]
        if not model or wrong:
            what = f"holds a {type(wrong[0]).__name__}" if wrong else "is empty"
            raise InputError(f"job: model: the list {what}; give a list of nn.Modules to run one after another")
        return
    if not callable(model):
        raise InputError(
            f"job: model is a {type(model).__name__}; "
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


def _check_callables(job: Job) -> None:
    for name, value in (("loss", job.loss), *((f"callbacks[{i}]", c) for i, c in enumerate(job.callbacks))):
        if not callable(value):
            raise InputError(f"job: {name} is a {type(value).__name__}; give a function")
    if job.reduce is not None and not callable(job.reduce):
        raise InputError(f"job: reduce is a {type(job.reduce).__name__}; give a function of (outputs, labels)")
    for name, metric in job.metrics.items():
        if not callable(metric):
            raise InputError(
                f"job: metrics: {name!r} is a {type(metric).__name__}; give a function of (outputs, labels)"
            )
        if name == "loss" or name.startswith("-"):
            raise InputError(
                f"job: metrics: the name {name!r} is taken; choose one that is not 'loss' and has no '-' first"
            )
    if job.schedule is not None and not callable(job.schedule):
        raise InputError(f"job: schedule {job.schedule!r}; give potluck.Cosine(total=...) or a function of the round")


def _check_optimizer(optimizer: object) -> None:
    known = (SGD, Adam, AdamW, RMSprop, Adagrad)
    if not isinstance(optimizer, known):
        names = ", ".join(f"potluck.{k.__name__}" for k in known)
        raise InputError(
            f"job: optimizer is a {type(optimizer).__name__}; give one of {names}, like potluck.SGD(lr=0.1)"
        )


def _check_data(name: str, data: object) -> None:
    if any(cls.__name__ == "IterableDataset" for cls in type(data).__mro__):
        raise InputError(
            f"job: {name} is an IterableDataset, whose samples cannot be made again after a failure; "
            "give a map-style Dataset with __len__ and __getitem__"
        )
    if isinstance(data, tuple):
        _check_arrays(name, data)
    elif not (hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")):
        raise InputError(
            f"job: {name} is a {type(data).__name__} without __len__ and __getitem__; "
            "give a map-style Dataset, or a tuple of tensors"
        )
    elif hasattr(data, "shape"):
        raise InputError(f"job: {name} is one {type(data).__name__}; give a tuple (inputs, labels), or a Dataset")
    if count(data) == 0:  # type: ignore[arg-type]
        raise InputError(f"job: {name} is empty; give at least one sample")


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
        what = f"holds a {type(wrong[0]).__name__}" if wrong else f"has length {len(data)}"
        raise InputError(f"job: {name}: the tuple {what}; give tensors or arrays, inputs first and labels last")
    lengths = [d.shape[0] if len(d.shape) else 0 for d in data]
    if len(set(lengths)) > 1:
        raise InputError(f"job: {name}: lengths {', '.join(map(str, lengths))}; give tensors of equal length")


def _check_sizes(job: Job) -> None:
    if (job.epochs is None) == (job.rounds is None):
        given = "neither" if job.epochs is None else "both"
        raise InputError(f"job: {given} of epochs and rounds given; give exactly one, like epochs=3")
    names = "batch_size micro_batch_size epochs rounds eval_every patience checkpoint_every keep"
    for name in names.split():
        value = getattr(job, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
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
    if isinstance(job.seed, bool) or not isinstance(job.seed, int) or not 0 <= job.seed < 2**32:
        raise InputError(f"job: seed {job.seed!r}; give a whole number from 0 to {2**32 - 1}")
    if job.clip_norm is not None and not (math.isfinite(job.clip_norm) and job.clip_norm > 0):
        raise InputError(f"job: clip_norm {job.clip_norm}; give a finite number above 0")


def _check_evaluation(job: Job) -> None:
    if job.eval_data is None:
        for name in ("metrics", "reduce", "eval_every", "best", "patience"):
            if getattr(job, name):
                raise InputError(f"job: {name} is given but eval_data is not; give eval_data too")
    name, _ = job.best_metric
    if job.reduce is not None and name == "loss" and (job.best or job.patience):
        raise InputError("job: with reduce there is no evaluation loss; name a metric in best")
    if name != "loss" and name not in job.metrics:
        known = ", ".join(["-loss", *job.metrics])
        raise InputError(
            f"job: best {job.best!r} is no metric; give one of {known} (with '-' first if lower is better)"
        )


def _check_choices(job: Job) -> None:
    if job.loss_weight not in ("samples", "tokens") and not callable(job.loss_weight):
        raise InputError(f"job: loss_weight {job.loss_weight!r}; give 'samples', 'tokens' or a function of the labels")
    if job.batchnorm not in ("refuse", "local"):
        raise InputError(f"job: batchnorm {job.batchnorm!r}; give 'refuse' or 'local'")
    if job.kernels not in ("quick", "torch"):
        raise InputError(f"job: kernels {job.kernels!r}; give 'quick' or 'torch'")
    if job.pad is not None and not isinstance(job.pad, Pad):
        raise InputError(f"job: pad is a {type(job.pad).__name__}; give potluck.Pad(length=128)")
    if job.init is not None:
        path = Path(job.init)
        if path.suffix != ".safetensors" or not path.is_file():
            raise InputError(
                f"job: init {str(path)!r} is not a .safetensors file; give its path from where you start potluck, "
                "or use Path(__file__).parent"
            )
