"""Samples are made ahead of time, and any replay makes the same ones."""

import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from potluck.coordinator.samples.loading import (
    Loader,
    SampleMaker,
    evaluation_loader,
    spread_evaluation_samples,
    training_loader,
)
from potluck.datasets.sample_order import PlainOrder, RoundSamples, SampleOrder
from potluck.errors import InputError, PotluckError
from potluck.job.job import Job, Pad
from potluck.job.optimizers import SGD


class Noisy:
    """Every sample draws from all three generators."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.randn(3) + np.random.rand() + random.random(), i  # noqa: S311


class Made:
    """Samples given by a function."""

    def __init__(self, make, count=6):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.make(i)


def batch(make, ids=(0, 1, 2), epoch=0, **options):
    return SampleMaker(Made(make), seed=0, **options).make(RoundSamples(epoch, 0, tuple(ids)))


def same(left, right):
    return left.ids == right.ids and all(torch.equal(left.feeds[n], right.feeds[n]) for n in left.feeds)


def test_a_replay_makes_the_same_samples_and_another_epoch_others():
    order = SampleOrder(seed=5, count=20, batch_size=8, epochs=2)
    with Loader(SampleMaker(Noisy(), seed=5), order) as loader:
        forwards = [loader.get(r) for r in range(order.rounds)]
        assert all(same(loader.get(r), forwards[r]) for r in (4, 0, 3, 3, 5))
    first, second = (
        {i: x for b in half for i, x in zip(b.ids, b.feeds["input"], strict=True)}
        for half in (forwards[:3], forwards[3:])
    )
    assert not any(torch.equal(first[i], second[i]) for i in range(20))


def test_a_sample_does_not_depend_on_who_is_made_with_it():
    maker = SampleMaker(Noisy(), seed=1)
    together = maker.make(RoundSamples(0, 0, (3, 4, 5))).feeds["input"]
    alone = maker.make(RoundSamples(0, 9, (4,))).feeds["input"]
    assert torch.equal(together[1], alone[0])
    assert not torch.equal(SampleMaker(Noisy(), seed=2).make(RoundSamples(0, 0, (4,))).feeds["input"], alone)


def test_tensors_at_once_equal_tensors_one_by_one():
    data = (torch.randn(20, 3, dtype=torch.float64), torch.arange(20))
    samples = RoundSamples(0, 0, (7, 0, 19))
    at_once = SampleMaker(data, seed=0).make(samples)
    assert same(at_once, SampleMaker(TensorDataset(*data), seed=0).make(samples))
    assert same(at_once, SampleMaker(tuple(t.numpy() for t in data), seed=0).make(samples))
    assert at_once.feeds["label"].tolist() == [7, 0, 19]


def test_arrays_that_cannot_be_written_are_read():
    array = np.arange(6.0)
    array.flags.writeable = False
    made = SampleMaker((array, array), seed=0).make(RoundSamples(0, 0, (5, 1)))
    made.feeds["input"].add_(1)
    assert array[5] == 5


def test_feeds_are_named_after_the_form_of_the_inputs():
    one, label = torch.zeros(2), 1
    assert list(batch(lambda i: (one, label)).feeds) == ["input", "label"]
    assert list(batch(lambda i: ((one,), label)).feeds) == ["input", "label"]
    assert list(batch(lambda i: ((one, one), label)).feeds) == ["input0", "input1", "label"]
    assert list(batch(lambda i: (one, one, label)).feeds) == ["input0", "input1", "label"]
    assert list(batch(lambda i: ({"ids": one, "mask": one}, label)).feeds) == ["ids", "mask", "label"]
    arrays = SampleMaker((torch.zeros(4), torch.zeros(4), torch.zeros(4)), seed=0).make(RoundSamples(0, 0, (1,)))
    assert list(arrays.feeds) == ["input0", "input1", "label"]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.zeros(2), torch.float64),
        (np.zeros(2, np.float32), torch.float32),
        (np.zeros(2, np.uint8), torch.uint8),
        (np.float64(1), torch.float64),
        (torch.zeros(2, dtype=torch.bfloat16), torch.bfloat16),
        (3, torch.int64),
        ([1, 2], torch.int64),
        (0.5, torch.float32),
        (True, torch.bool),
    ],
)
def test_values_keep_their_own_dtype(value, dtype):
    assert batch(lambda i: (value, 0)).feeds["input"].dtype == dtype


def test_weights_count_samples_tokens_or_what_a_function_says():
    labels = torch.tensor([[1, -100, -100], [1, 2, 3], [-100, -100, -100]])
    by_samples = batch(lambda i: (0, labels[i]))
    assert by_samples.weights.dtype == torch.float64
    assert by_samples.weights.tolist() == [1, 1, 1]
    assert batch(lambda i: (0, labels[i]), loss_weight="tokens").weights.tolist() == [1, 3, 0]
    assert batch(lambda i: (0, labels[i]), loss_weight="tokens", ignore_index=1).weights.tolist() == [2, 2, 3]
    assert batch(lambda i: (0, i), loss_weight=lambda y: y * 2).weights.tolist() == [0, 2, 4]


@pytest.mark.parametrize("wrong", [lambda y: y[:1], lambda y: y * 0, lambda y: y - 1, lambda y: y / 0])
def test_impossible_weights_are_refused(wrong):
    with pytest.raises(InputError, match="loss_weight"):
        batch(lambda i: (0, i), loss_weight=wrong)


def test_samples_of_different_lengths_are_padded():
    made = batch(
        lambda i: ({"ids": torch.arange(i), "flag": torch.ones(i, 2, dtype=torch.bool), "n": i}, list(range(i))),
        pad=Pad(length=3, value={"ids": 9, "flag": 0}),
        ids=(2, 3, 1),
    )
    assert made.feeds["ids"].tolist() == [[0, 1, 9], [0, 1, 2], [0, 9, 9]]
    assert made.feeds["flag"][0].tolist() == [[True, True], [True, True], [False, False]]
    assert made.feeds["n"].tolist() == [2, 3, 1]
    assert made.feeds["label"].tolist() == [[0, 1, -100], [0, 1, 2], [0, -100, -100]]
    plain = batch(lambda i: (torch.ones(i + 1), i), pad=Pad(length=4, value=0.5))
    assert plain.feeds["input"].tolist() == [[1, 0.5, 0.5, 0.5], [1, 1, 0.5, 0.5], [1, 1, 1, 0.5]]


def fail(i):
    raise KeyError("no such\npicture")


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (fail, {}, "sample 1 cannot be made: KeyError"),
        (lambda i: torch.zeros(3), {}, r"sample 1 .* is a Tensor, not \(inputs, labels\)"),
        (lambda i: ("text", 1), {}, "sample 1 .* its input is a str"),
        (lambda i: (np.array(["a"]), 1), {}, "sample 1 .* dtype"),
        (lambda i: ({"label": 1}, 1), {}, "sample 1 .* none 'label'"),
        (lambda i: (torch.zeros(i), 1), {}, r"sample 1 has shape \(1,\) but of sample 2 \(2,\).*Pad"),
        (lambda i: (i if i > 1 else 0.5, 1), {}, "sample 1 is torch.float32 but of sample 2 torch.int64"),
        (lambda i: ({"a": 1} if i > 1 else {"b": 1}, 1), {}, "sample 1 has b, label but sample 2 has a, label"),
        (lambda i: (torch.zeros(i), 1), {"pad": Pad(length=1)}, "sample 2 has length 2 but pad says 1"),
    ],
)
def test_what_is_wrong_with_a_sample_names_it_on_one_line(make, options, words):
    with pytest.raises(InputError, match=words) as caught:
        batch(make, ids=(1, 2), **options)
    assert "\n" not in str(caught.value)


class Watched:
    """Counts what is made, and can be held."""

    def __init__(self):
        self.made = []
        self.go = threading.Event()
        self.changed = threading.Condition()

    def __len__(self):
        return 100

    def __getitem__(self, i):
        assert self.go.wait(10)
        with self.changed:
            self.made.append(i)
            self.changed.notify_all()
        return i, i

    def wait_for(self, ids):
        with self.changed:
            assert self.changed.wait_for(lambda: set(self.made) >= set(ids), 10)


def test_the_next_rounds_are_made_ahead_but_no_more():
    data = Watched()
    data.go.set()
    with Loader(SampleMaker(data, seed=0), PlainOrder(count=100, batch_size=1), ahead=2) as loader:
        loader.get(0)
        data.wait_for({0, 1, 2})
        loader.get(1)
        data.wait_for({3})
        loader.get(1)
        assert loader.get(3).ids == (3,)
        with loader._changed:
            assert loader._changed.wait_for(lambda: 5 in loader._ready, 10)
            assert loader._next() is None  # there is nothing more to do until somebody asks
    assert sorted(data.made) == [0, 1, 2, 3, 4, 5]  # each once, and none beyond


def test_a_data_set_that_hangs_is_reported_at_the_deadline():
    data = Watched()
    loader = Loader(SampleMaker(data, seed=0), PlainOrder(count=4, batch_size=1))
    with pytest.raises(InputError, match=r"round 0 took more than 0\.05 s"):
        loader.get(0, timeout_s=0.05)
    data.go.set()
    assert loader.get(0).ids == (0,)
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        loader.get(0)


def test_an_error_is_raised_for_its_own_round_only():
    with Loader(SampleMaker(Made(lambda i: (1 // (i - 2), 0)), seed=0), PlainOrder(count=6, batch_size=1)) as loader:
        assert loader.get(1).ids == (1,)
        for _ in range(2):
            with pytest.raises(InputError, match="sample 2 cannot be made: ZeroDivisionError"):
                loader.get(2)
        assert loader.get(3).ids == (3,)
        with pytest.raises(PotluckError, match="round 6"):
            loader.get(6)


def test_loaders_of_a_job():
    data = (torch.zeros(10, 2), torch.arange(10))
    job = Job(
        model=torch.nn.Identity,
        loss=torch.nn.functional.mse_loss,
        optimizer=SGD(lr=1),
        data=data,
        eval_data=data,
        batch_size=4,
        epochs=2,
        seed=3,
    )
    with training_loader(job) as training, evaluation_loader(job) as evaluation:
        assert (training.order.rounds, evaluation.order.rounds) == (6, 3)
        assert training.get(2).feeds["label"].tolist() == list(training.order.round(2).ids)
        assert evaluation.get(2).feeds["label"].tolist() == [8, 9]


def test_a_data_set_that_exits_is_an_error_and_does_not_end_the_loader_without_a_word():
    def leave(i):
        raise SystemExit("no more")

    with Loader(SampleMaker(Made(leave), seed=0), PlainOrder(count=6, batch_size=2)) as loader:
        with pytest.raises(InputError, match=r"data: sample 0 cannot be made: SystemExit: no more"):
            loader.get(0, timeout_s=5.0)
        with pytest.raises(InputError, match=r"data: sample 2 cannot be made"):
            loader.get(1, timeout_s=5.0)


def test_samples_for_metrics_come_from_all_over_the_evaluation_data():
    labels = torch.arange(10) // 5
    data = (torch.zeros(10, 1), labels)
    job = Job(
        model=torch.nn.Linear(1, 1), loss=lambda x, y: x.mean(), optimizer=SGD(lr=0.1), data=data, eval_data=data,
        batch_size=2, epochs=1,
    )  # fmt: skip
    assert spread_evaluation_samples(job, 2).feeds["label"].tolist() == [0, 1]
    assert len(spread_evaluation_samples(job, 99).ids) == 10
