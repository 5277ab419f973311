"""What a user wants trained: a `Job`, validated when it is made, and `load_job`, which reads one from a file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from potluck.advice import described, mending, named_fields, one_line
from potluck.errors import InputError
from potluck.job.job_checks import check
from potluck.job.learning_rates import LearningRate
from potluck.job.optimizers import Optimizer

if TYPE_CHECKING:
    import torch
    from torch import nn

LARGEST_CHOSEN_MICRO_BATCH = 32  # samples: beyond, kernels hardly gain, and memory grows

# True while a job's file is run: whoever trains in it would train the job twice.
BEING_READ: ContextVar[bool] = ContextVar("BEING_READ", default=False)


class Samples(Protocol):
    """A map-style data set: sample i is (inputs, labels)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@named_fields("job: pad")
@dataclass(frozen=True, kw_only=True)
class Pad:
    """Samples of different lengths are filled up, at the end of their first axis, to a declared length.

    Inputs and labels without any axis (a class number) are left alone.
    """

    length: int  # the longest sample; a longer one is an error
    value: float | Mapping[str, float] = 0  # what fills inputs; a mapping from input name pads only the inputs it names
    label_value: float | None = -100  # what fills labels; None leaves them alone

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or self.length < 1:
            raise InputError(f"job: pad: length {self.length!r}; give the length of the longest sample")


@named_fields("job")
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
    staleness: int = (
        0  # steps that a gradient may be late: 1 lets rounds overlap, so that nobody waits for a round's end
    )
    batchnorm: Literal["refuse", "local"] = "refuse"  # "local": a stage with BatchNorm may be split by samples
    kernels: str = "quick"  # how a stage is executed; "torch": with those of the plain module, and its last bits

    def __post_init__(self) -> None:
        check(self)
        if self.pad is not None and not isinstance(self.pad, Pad):
            raise InputError(f"job: pad is {described(self.pad)}; give potluck.Pad(length=128)")

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


def load_job(path: str | Path, staleness: int | None = None) -> Job:
    """The job of a Python file: its name `job`, or another one given as `path.py:name`; with another `staleness`, if
    one is given."""
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
        raise InputError(f"{file}: {name} is {described(job)}, not a Job; make it with potluck.Job(...)")
    return job if staleness is None else replace(job, staleness=staleness)


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
    reading = BEING_READ.set(True)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may fail in any way
        sys.modules.pop(name, None)
        raise InputError(_where(file, error)) from error
    finally:
        BEING_READ.reset(reading)
    return module


def _where(file: Path, error: BaseException) -> str:
    """What went wrong in a user's file, and in which line."""
    if isinstance(error, InputError):  # our own messages say it all
        message = str(error)
    else:
        message = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else one_line(error)
        message += f"; {mending(message, 'correct that line')}"
    if isinstance(error, SyntaxError):
        place, line = error.filename or str(file), error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename == str(file)] or list(frames)
        place, line = own[-1].filename, own[-1].lineno
    return " ".join(f"{place}{f', line {line}' if line else ''}: {message}".split())
