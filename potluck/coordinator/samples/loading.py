"""Makes the samples of coming rounds ahead of time, so that training does not wait for them.

Each sample is made with torch, numpy and random seeded by (seed, epoch, sample id): a replay makes the same sample,
augmentation included. Those generators belong to the whole process, so samples are made by one thread at a time, and
nothing else on the coordinator should draw from them while a loader runs (build the model first).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch

from potluck.advice import one_line
from potluck.coordinator.samples.collate import LABEL, batch_of_arrays, collate, split_sample
from potluck.datasets.sample_order import DataOrder, PlainOrder, RoundSamples, SampleOrder, sample_seed
from potluck.errors import InputError, PotluckError
from potluck.job.job import Job, Pad, Samples, count

LossWeight = Literal["samples", "tokens"] | Callable[[torch.Tensor], torch.Tensor]

_GENERATORS = threading.Lock()  # held while a sample is made: the generators it is made with are the process's


@dataclass(frozen=True)
class Batch:
    """The samples of one round, in the order of their ids."""

    ids: tuple[int, ...]
    feeds: dict[str, torch.Tensor]  # "input", or "input0", …, or the keys of the sample's dict; and "label"
    weights: torch.Tensor  # float64, per sample: how much it counts in the round's loss


@dataclass(frozen=True)
class SampleMaker:
    """Turns sample ids into a batch."""

    data: Samples | tuple[Any, ...]
    _: KW_ONLY
    seed: int
    pad: Pad | None = None
    loss_weight: LossWeight = "samples"
    ignore_index: int = -100

    def make(self, samples: RoundSamples) -> Batch:
        """The batch of a round; the same arguments give the same bits."""
        if isinstance(self.data, tuple) and self.pad is None:
            feeds = batch_of_arrays(self.data, samples.ids)
        else:
            feeds = collate([self._make_one(samples.epoch, i) for i in samples.ids], samples.ids, self.pad)
        return Batch(samples.ids, feeds, self._weights(feeds[LABEL], samples))

    def _make_one(self, epoch: int, sample: int) -> dict[str, torch.Tensor]:
        try:
            if isinstance(self.data, tuple):
                return split_sample(tuple(array[sample] for array in self.data))
            with _GENERATORS:
                _seed_generators(sample_seed(self.seed, epoch, sample))
                return split_sample(self.data[sample])
        except (Exception, SystemExit) as error:  # the user's data set may fail in any way
            message = str(error) if isinstance(error, InputError) else one_line(error)
            raise InputError(f"data: sample {sample} cannot be made: {message}; correct data[{sample}]") from error

    def _weights(self, labels: torch.Tensor, samples: RoundSamples) -> torch.Tensor:
        if self.loss_weight == "samples":
            return torch.ones(len(samples.ids), dtype=torch.float64)
        if self.loss_weight == "tokens":
            counted = labels != self.ignore_index
            weights = counted.reshape(len(samples.ids), -1).sum(dim=1).to(torch.float64)
        else:
            weights = torch.as_tensor(self.loss_weight(labels)).detach().to("cpu", torch.float64)
        where = f"epoch {samples.epoch}, round {samples.index_in_epoch} of it"
        if weights.shape != (len(samples.ids),):
            raise InputError(
                f"loss_weight: gave shape {tuple(weights.shape)} for {len(samples.ids)} samples ({where}); "
                "return one weight per sample"
            )
        if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()) or not bool(weights.sum() > 0):
            raise InputError(
                f"loss_weight: the weights of {where} are negative, not finite or all zero; "
                "every round needs at least one sample that counts"
            )
        return weights


class Loader:
    """Batches by round number, made in one background thread, the next few ahead of time."""

    def __init__(self, maker: SampleMaker, order: DataOrder, *, ahead: int = 2) -> None:
        self.order = order
        self._maker = maker
        self._ahead = ahead
        self._changed = threading.Condition()
        self._ready: dict[int, Batch | PotluckError] = {}
        self._wanted: int | None = None  # the round asked for last; it and the next `ahead` are made and kept
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="potluck-loader", daemon=True)
        self._thread.start()

    def get(self, round: int, *, timeout_s: float = 600.0) -> Batch:
        """The batch of a round, waiting until it is made. Any round may be asked for, again and in any order."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the loader is closed")
            self._wanted = round
            for other in [r for r in self._ready if not round <= r <= round + self._ahead]:
                del self._ready[other]
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: round in self._ready or self._closed, timeout_s):
                raise InputError(f"data: the samples of round {round} took more than {timeout_s:g} s; make them faster")
            made = self._ready.get(round)
        if made is None:
            raise RuntimeError("the loader was closed while a batch was being made")
        if isinstance(made, PotluckError):
            raise made
        return made

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Stop the thread. One that hangs in the user's data set is left to die with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> int | None:
        """The first round that is wanted and not made."""
        if self._wanted is None:
            return None
        last = min(self._wanted + self._ahead + 1, self.order.rounds)
        # A round past the end is made too when asked for itself: it fails with the reason.
        rounds = range(self._wanted, max(last, self._wanted + 1))
        return next((r for r in rounds if r not in self._ready), None)

    def _work(self) -> None:
        while True:
            with self._changed:
                # No deadline: this wait is ended by get() and close(), and the thread never keeps the process alive.
                self._changed.wait_for(lambda: self._closed or self._next() is not None)
                round = self._next()
                if self._closed or round is None:
                    return
            made = self._make(round)
            with self._changed:
                self._ready[round] = made
                self._changed.notify_all()

    def _make(self, round: int) -> Batch | PotluckError:
        try:
            return self._maker.make(self.order.round(round))
        except PotluckError as error:
            return error
        except BaseException as error:  # must reach whoever waits, not die with this thread
            failure = PotluckError(f"data: round {round} cannot be made: {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure


def training_loader(job: Job, *, ahead: int = 2) -> Loader:
    """A loader over the job's training data, in its deterministic order."""
    return Loader(_maker(job, _at_hand(job)), training_order(job), ahead=ahead)


def training_order(job: Job) -> SampleOrder:
    """Which samples belong to which round."""
    return SampleOrder(
        seed=job.seed, count=job.sample_count, batch_size=job.batch_size, epochs=job.epochs, rounds=job.rounds
    )


def first_samples(job: Job, count: int) -> Batch:
    """The first samples of training, as many as asked for if there are, whatever the batch size.

    Where devices own the training data, those of the evaluation.
    """
    if isinstance(job.data, str):
        return first_evaluation_samples(job, count)
    order = SampleOrder(seed=job.seed, count=job.sample_count, batch_size=min(count, job.sample_count), rounds=1)
    return _maker(job, _at_hand(job)).make(order.round(0))


def evaluation_loader(job: Job, *, ahead: int = 2) -> Loader:
    """A loader over the job's evaluation data, from the first sample to the last, in batches of the same size."""
    data = _to_judge_by(job)
    return Loader(_maker(job, data), PlainOrder(count=count(data), batch_size=job.batch_size), ahead=ahead)


def first_evaluation_samples(job: Job, count_wanted: int) -> Batch:
    data = _to_judge_by(job)
    return _maker(job, data).make(RoundSamples(0, 0, tuple(range(min(count_wanted, count(data))))))


def spread_evaluation_samples(job: Job, count_wanted: int) -> Batch:
    """Samples from all over the evaluation data: its first ones may all be of one class."""
    data = _to_judge_by(job)
    wanted = min(count_wanted, count(data))
    ids = tuple(i * count(data) // wanted for i in range(wanted))
    return _maker(job, data).make(RoundSamples(0, 0, ids))


def share(job: Job, part: int, parts: int) -> dict[str, torch.Tensor]:
    """Every so-manieth sample of the training data, for a device that has none of its own."""
    ids = tuple(range(part, job.sample_count, parts))
    return _maker(job, _at_hand(job)).make(RoundSamples(0, 0, ids)).feeds


def _to_judge_by(job: Job) -> Samples | tuple[Any, ...]:
    if job.eval_data is None:
        raise InputError("job: eval_data is not given; give it to evaluate")
    return job.eval_data


def _at_hand(job: Job) -> Samples | tuple[Any, ...]:
    if isinstance(job.data, str):
        raise InputError(f"job: data {job.data!r} is on the devices; train with --sync, where it stays there")
    return job.data


def _maker(job: Job, data: Samples | tuple[Any, ...]) -> SampleMaker:
    return SampleMaker(data, seed=job.seed, pad=job.pad, loss_weight=job.loss_weight, ignore_index=job.ignore_index)


def _seed_generators(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # a hundred times as fast as seeding every accelerator too
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
