"""Do data, model, loss and metrics fit? Tried on a few samples before anything is started."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from potluck.advice import described, mending, one_line
from potluck.coordinator.samples.collate import batch_of_arrays
from potluck.coordinator.samples.job_metrics import measure
from potluck.coordinator.samples.loading import first_evaluation_samples, spread_evaluation_samples
from potluck.errors import InputError
from potluck.job.job import Job
from potluck.model.forms import LABEL, call_model
from potluck.model.modes import modes_kept
from potluck.model.outputs import take_apart
from potluck.model.user_functions import Field, call_function

_ROWS = 2  # the fewest that have a mean and a variance
_METRIC_ROWS = 32  # a metric may need several samples of several classes,
_METRIC_BYTES = 64 * 2**20  # but not if their outputs are large
_ONE_NUMBER = "return one number as a tensor, the mean over the samples"


def check_fit(module: nn.Module, job: Job, feeds: Mapping[str, torch.Tensor]) -> None:
    """Runs the model on a few training and evaluation samples; an InputError says what fails."""
    kinds = {parameter.device.type for parameter in module.parameters()}
    if "meta" in kinds:
        return
    if elsewhere := kinds - {"cpu"}:
        where = ", ".join(sorted(elsewhere))
        raise InputError(f"job: model: its weights are on {where}; {mending(where, 'leave them on the cpu')}")
    with _other_buffers(module), modes_kept(module), torch.no_grad():
        module.eval()
        _check_one_number(_loss(module, job, "the first samples of data", feeds))
        _check_mean(module, job, {n: t[:_ROWS] for n, t in feeds.items()})
        if (found := _of_extreme_labels(job)) is not None:
            _loss(module, job, *found)
        if job.eval_data is not None:
            _check_evaluation(module, job)


@contextlib.contextmanager
def _other_buffers(module: nn.Module) -> Iterator[None]:
    """Within, buffers are copies: a model that counts its calls must not begin with those that only tried it."""
    own = [(m._buffers, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    copies = {buffer: buffer.clone() for _, _, buffer in own}
    for buffers, name, buffer in own:
        buffers[name] = copies[buffer]
    try:
        yield
    finally:
        for buffers, name, buffer in own:
            buffers[name] = buffer


def _of_extreme_labels(job: Job) -> tuple[str, dict[str, torch.Tensor]] | None:
    """The samples with the smallest and the largest label, if they are at hand: a class too many shows there."""
    arrays = job.data.tensors if type(job.data) is TensorDataset else job.data
    if not isinstance(arrays, tuple) or job.pad is not None or "int" not in str(arrays[-1].dtype):
        return None
    labels = arrays[-1]
    each = math.prod(labels.shape) // len(labels)
    if not each:
        return None
    ids = [int(found) // each for found in (labels.argmin(), labels.argmax())]
    of = f"samples {ids[0]} and {ids[1]} of data, with the smallest and the largest label"
    return of, batch_of_arrays(arrays, ids)


def _loss(module: nn.Module, job: Job, of: str, small: Mapping[str, torch.Tensor]) -> Any:
    outputs = _try("model", of, small, lambda: call_model(module, small))
    return _function("loss", job, of, outputs, small)


def _function(field: Field, job: Job, of: str, outputs: Any, small: Mapping[str, torch.Tensor]) -> Any:
    """The job's loss or reduce of some outputs."""
    function = job.loss if field == "loss" or job.reduce is None else job.reduce
    given = {**_shown(outputs), LABEL: small[LABEL]}
    return _try(field, of, given, lambda: call_function(field, function, outputs, small[LABEL]))


def _shown(outputs: Any) -> dict[str, torch.Tensor]:
    return {"outputs": outputs} if isinstance(outputs, torch.Tensor) else {}


def _check_evaluation(module: nn.Module, job: Job) -> None:
    of = "the first samples of eval_data"
    small = first_evaluation_samples(job, _ROWS).feeds
    outputs = _try("model", of, small, lambda: _as_evaluated(call_model(module, small)))
    given = _function("loss" if job.reduce is None else "reduce", job, of, outputs, small)
    if job.metrics:
        _check_metrics(module, job, small, outputs if job.reduce is None else given)


def _as_evaluated(outputs: Any) -> Any:
    """The outputs as they arrive from the devices: without what does not travel."""
    form, tensors = take_apart(outputs)
    return form.make(tensors)


def _check_metrics(module: nn.Module, job: Job, small: Mapping[str, torch.Tensor], given: Any) -> None:
    """Tries the metrics: it would be a pity to find out after the first epoch."""
    row_bytes = sum(t.nbytes for t in take_apart(given)[1]) // len(small[LABEL])
    feeds = spread_evaluation_samples(job, max(_ROWS, min(_METRIC_ROWS, _METRIC_BYTES // (row_bytes + 1)))).feeds
    of = "samples from all over eval_data"
    outputs = _try("model", of, feeds, lambda: _as_evaluated(call_model(module, feeds)))
    if job.reduce is not None:
        outputs = _try("reduce", of, feeds, lambda: job.reduce(outputs, feeds[LABEL]))  # type: ignore[misc]
    measure(job, outputs, feeds[LABEL])


def _try(field: str, of: str, small: Mapping[str, torch.Tensor], work: Callable[[], Any]) -> Any:
    try:
        return work()
    except InputError as error:
        raise InputError(f"job: {error}") from error
    except Exception as error:
        shapes = ", ".join(f"{n} {str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for n, t in small.items())
        reason = one_line(error)
        raise InputError(
            f"job: {field} fails on {of} ({shapes}): {reason}; {mending(reason, 'make them fit')}"
        ) from error


def _check_one_number(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"job: loss gives {described(loss)}; {_ONE_NUMBER}")
    if loss.numel() != 1:
        raise InputError(f"job: loss gives a tensor of shape {list(loss.shape)}; {_ONE_NUMBER} (reduction='mean')")


def _check_mean(module: nn.Module, job: Job, small: Mapping[str, torch.Tensor]) -> None:
    """Refuses a loss that adds samples up: the same samples twice must not cost twice as much."""
    once = float(job.loss(call_model(module, small), small[LABEL]))
    if not math.isfinite(once) or abs(once) < 1e-6:
        return
    twice = {n: torch.cat([t, t]) for n, t in small.items()}
    double = float(job.loss(call_model(module, twice), twice[LABEL]))
    if abs(double - 2 * once) < 1e-3 * abs(double):
        raise InputError("job: loss adds up its samples (twice the samples, twice the loss); give a mean over samples")
