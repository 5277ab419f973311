"""Do data, model, loss and metrics fit? Tried on a few samples before anything is started."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from potluck.coordinator.samples.job_metrics import measure
from potluck.coordinator.samples.loading import first_evaluation_samples, spread_evaluation_samples
from potluck.errors import InputError
from potluck.job.job import Job
from potluck.model.forms import LABEL, call_model
from potluck.model.modes import modes_kept
from potluck.model.outputs import take_apart
from potluck.model.user_functions import Field, call_function

_ROWS = 2
_METRIC_ROWS = 32  # a metric may need several samples of several classes,
_METRIC_BYTES = 64 * 2**20  # but not if their outputs are large


def check_fit(module: nn.Module, job: Job, feeds: Mapping[str, torch.Tensor]) -> None:
    """Runs the model once on training and once on evaluation samples; an InputError says what fails."""
    if any(p.is_meta for p in module.parameters()):
        return
    with _other_buffers(module), modes_kept(module), torch.no_grad():
        module.eval()
        small = {n: t[:_ROWS] for n, t in feeds.items()}
        loss = _try("data", small, lambda: _loss(module, job, small))
        _check_mean(module, job, small, loss)
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


def _loss(module: nn.Module, job: Job, feeds: Mapping[str, torch.Tensor]) -> Any:
    return call_function("loss", job.loss, call_model(module, feeds), feeds[LABEL])


def _check_evaluation(module: nn.Module, job: Job) -> None:
    small = first_evaluation_samples(job, _ROWS).feeds
    field: Field = "loss" if job.reduce is None else "reduce"
    outputs = _try("eval_data", small, lambda: _as_evaluated(call_model(module, small)))
    given = _try("eval_data", small, lambda: call_function(field, job.reduce or job.loss, outputs, small[LABEL]))
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
    outputs = _try("eval_data", feeds, lambda: _as_evaluated(call_model(module, feeds)))
    if job.reduce is not None:
        outputs = _try("eval_data", feeds, lambda: job.reduce(outputs, feeds[LABEL]))  # type: ignore[misc]
    measure(job, outputs, feeds[LABEL])


def _try(field: str, small: Mapping[str, torch.Tensor], work: Callable[[], Any]) -> Any:
    try:
        return work()
    except InputError as error:
        raise InputError(f"job: {error}") from error
    except Exception as error:
        shapes = ", ".join(f"{n} {str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for n, t in small.items())
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InputError(
            f"job: the model or the loss fails on the first samples of {field} ({shapes}): {reason}; make them fit"
        ) from error


def _check_mean(module: nn.Module, job: Job, small: Mapping[str, torch.Tensor], loss: Any) -> None:
    """Refuses a loss that adds samples up: the same samples twice must not cost twice as much."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not torch.isfinite(loss) or abs(float(loss)) < 1e-6:
        return
    twice = {n: torch.cat([t, t]) for n, t in small.items()}
    double = float(_loss(module, job, twice))
    if abs(double - 2 * float(loss)) < 1e-3 * abs(double):
        raise InputError("job: loss adds up its samples (twice the samples, twice the loss); give a mean over samples")
