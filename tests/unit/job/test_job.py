"""A job is checked when it is made, and read from a user's file."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import potluck
from potluck.errors import InputError
from potluck.job.job import Job, Pad, choose_micro_batch, load_job
from potluck.job.optimizers import SGD


def make_model():
    return nn.Linear(3, 2)


DATA = (torch.zeros(40, 3), torch.zeros(40, dtype=torch.int64))
GOOD: dict[str, Any] = {
    "model": make_model,
    "loss": functional.cross_entropy,
    "optimizer": SGD(lr=0.1),
    "data": DATA,
    "batch_size": 20,
    "epochs": 1,
}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class NoLength:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model": nn.Linear(3, 2)},
        {"model": [nn.Linear(3, 3), nn.Linear(3, 2)]},
        {"data": TensorDataset(*DATA)},
        {"data": (np.zeros((40, 3)), np.zeros(40))},
        {"data": [(torch.zeros(3), 1)] * 40},
        {"epochs": None, "rounds": 7},
        {"eval_data": DATA, "metrics": {"accuracy": lambda o, y: 1.0}, "best": "accuracy", "patience": 2},
        {"schedule": lambda r: 1.0},
        {"loss_weight": "tokens", "pad": Pad(length=8), "batchnorm": "local"},
    ],
)
def test_what_users_may_write_is_accepted(change):
    assert Job(**{**GOOD, **change}).micro_batch == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": 3}, "model is an int"),
        ({"model": []}, "the list is empty"),
        ({"model": [nn.Linear(1, 1), 3]}, "holds an int"),
        ({"model": nn.Linear}, "Linear needs arguments"),
        ({"loss": None}, "loss is None"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)}, "potluck.SGD"),
        ({"data": Stream()}, "IterableDataset"),
        ({"data": NoLength()}, "with __len__"),
        ({"data": torch.zeros(40, 3)}, "data is a Tensor; give a tuple"),
        ({"data": (torch.zeros(40),)}, "length 1"),
        ({"data": (torch.zeros(40), [1] * 40)}, "holds a list"),
        ({"data": (torch.zeros(40), torch.zeros(39))}, "40, 39"),
        ({"data": []}, "data is empty"),
        ({"eval_data": []}, "eval_data is empty"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"batch_size": 2.5}, "batch_size 2.5"),
        ({"batch_size": 41}, "at most 40"),
        ({"micro_batch_size": 7}, "5 would"),
        ({"epochs": None}, "neither of epochs and rounds"),
        ({"rounds": 3}, "both of epochs and rounds"),
        ({"epochs": 0}, "epochs 0"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**32}, "seed 4294967296"),
        ({"schedule": 0.5}, "schedule is a float"),
        ({"clip_norm": 0.0}, "clip_norm 0.0"),
        ({"metrics": {"accuracy": len}}, "metrics is given but eval_data is not"),
        ({"patience": 2}, "patience is given"),
        ({"eval_data": DATA, "metrics": {"loss": len}}, "'loss' cannot be a name"),
        ({"eval_data": DATA, "metrics": {"accuracy": 1}}, "metrics['accuracy'] is an int"),
        ({"eval_data": DATA, "best": "f1"}, "best 'f1' is no metric"),
        ({"loss_weight": "words"}, "loss_weight 'words'"),
        ({"batchnorm": "sync"}, "batchnorm 'sync'"),
        ({"pad": 128}, "potluck.Pad"),
        ({"init": "nowhere.safetensors"}, "nowhere.safetensors"),
        ({"keep": 0}, "keep 0"),
        ({"callbacks": [3]}, "callbacks[0]"),
        ({"loss": nn.CrossEntropyLoss}, "give an instance of it, like nn.CrossEntropyLoss()"),
        ({"loss": "cross_entropy"}, "like torch.nn.functional.cross_entropy"),
        ({"schedule": potluck.Cosine}, "give an instance of it, like potluck.Cosine(...)"),
        ({"schedule": torch.optim.lr_scheduler.StepLR}, "schedule is torch's StepLR; give potluck.Constant"),
        ({"schedule": lambda a, b: 1.0}, "schedule: fails for round 0: TypeError"),
        ({"schedule": lambda r: torch.ones(())}, "schedule: gave tensor(1.) for round 0"),
        ({"optimizer": SGD}, "optimizer is the class SGD; give potluck.SGD(lr=...)"),
        ({"optimizer": torch.optim.AdamW}, "optimizer is torch's AdamW; give potluck.AdamW(lr=...)"),
        ({"optimizer": torch.optim.LBFGS}, "optimizer is torch's LBFGS; give one of potluck.SGD"),
        ({"optimizer": "adam"}, "give potluck.Adam(lr=...)"),
        ({"eval_data": DATA, "metrics": [len]}, "metrics is a list; give a dict of name: function"),
        ({"eval_data": DATA, "metrics": {"f1": Stream}}, "metrics['f1'] is the class Stream; give an instance"),
        ({"eval_data": DATA, "metrics": {1: len}}, "metrics: 1 cannot be a name"),
        ({"eval_data": DATA, "best": 1}, "best 1; give the name of a metric"),
        ({"callbacks": print}, "give a list of functions"),
        ({"data": DataLoader(TensorDataset(*DATA))}, "data is a DataLoader; give its .dataset (batch_size belongs"),
        ({"eval_data": DataLoader(TensorDataset(*DATA))}, "eval_data is a DataLoader; give its .dataset"),
        ({"data": None}, "data is None, not a data set"),
        ({"data": TensorDataset}, "data is the class TensorDataset; give an instance"),
        ({"data": list(DATA)}, "data is a list; give a tuple (inputs, labels)"),
        ({"data": {"x": DATA[0], "y": DATA[1]}}, "data is a dict; give a tuple (inputs, labels)"),
        ({"batch_size": None}, "batch_size None"),
        ({"clip_norm": "1"}, "clip_norm '1'"),
        ({"clip_norm": True}, "clip_norm True"),
        ({"ignore_index": "x"}, "ignore_index 'x'"),
        ({"init": 3}, "init '3'"),
        ({"batchsize": 3}, "job: there is no 'batchsize'; did you mean batch_size? There are model, loss, optimizer,"),
        ({"criterion": len}, "did you mean loss?"),
        ({"train_data": DATA}, "did you mean data?"),
        ({"lr": 0.1}, "there is no 'lr'; give one of model, loss,"),
    ],
)
def test_what_is_wrong_is_named_on_one_line(change, words):
    with pytest.raises(InputError) as caught:
        Job(**{**GOOD, **change})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fields_that_are_missing_or_have_no_name_are_named():
    with pytest.raises(InputError, match=r"job: loss, optimizer not given; add loss=\.\.\., optimizer=\.\.\."):
        Job(**{name: value for name, value in GOOD.items() if name not in ("loss", "optimizer")})
    positional: Any = Job
    with pytest.raises(InputError, match="job: a function is given without a name; give it as NAME="):
        positional(make_model, functional.cross_entropy)
    unnamed: Any = Pad
    with pytest.raises(InputError, match="job: pad: length not given"):
        unnamed()


def test_best_metric_says_which_way_is_better():
    judged = {**GOOD, "eval_data": DATA, "metrics": {"accuracy": lambda o, y: 1.0}}
    assert Job(**judged).best_metric == ("loss", False)
    assert Job(**judged, best="accuracy").best_metric == ("accuracy", True)


@pytest.mark.parametrize(
    ("batch", "micro"), [(1, 1), (2, 2), (3, 3), (4, 2), (7, 7), (8, 2), (64, 16), (100, 25), (256, 32), (1000, 25)]
)
def test_the_chosen_micro_batch(batch, micro):
    assert choose_micro_batch(batch) == micro


def test_a_batch_that_nothing_divides_is_refused_with_a_way_out():
    with pytest.raises(InputError, match="96 or 98"):
        choose_micro_batch(97)


@given(st.integers(1, 5000))
def test_the_chosen_micro_batch_divides_the_batch(batch):
    try:
        micro = choose_micro_batch(batch)
    except InputError:
        assert all(batch % d for d in range(2, 33))
    else:
        assert batch % micro == 0
        assert micro <= 32


JOB_FILE = """
import potluck.job.job, potluck.job.optimizers, torch
import neighbour
job = potluck.job.job.Job(model=torch.nn.Identity, loss=torch.nn.functional.mse_loss,
                      optimizer=potluck.job.optimizers.SGD(lr=0.1), data=[(1.0, 2.0)] * neighbour.SIZE,
                      batch_size=4, epochs={epochs})
other = job
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    (tmp_path / "neighbour.py").write_text("SIZE = 8\n")
    (tmp_path / "job.py").write_text(JOB_FILE.format(epochs=2))
    return tmp_path


def test_a_job_is_read_from_a_file_that_imports_its_neighbour(folder):
    assert load_job(folder / "job.py").epochs == 2
    assert load_job(f"{folder}/job.py:other").epochs == 2


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("job.py:number", None, "number is an int, not a Job"),
        ("job.py:nothing", None, "defines no 'nothing'; use"),
        ("absent.py", None, "no such file"),
        ("bad.py", "x = 1\ny = (\n", "line 2: SyntaxError"),
        ("bad.py", "x = 1\n\ndef f():\n    raise ValueError('two\\nlines')\nf()\n", "line 4: ValueError: two lines"),
        ("bad.py", "import nowhere_to_be_found\n", "line 1: ModuleNotFoundError"),
        ("bad.py", "raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("bad.py", "import nowhere_to_be_found\n", "correct its name, or install it"),
        ("bad.py", "import torch\ntorch.zeros(1).to('cuda:99')\n", "leave the device out of your code"),
        ("bad.py", "x = 1\n\0", "null bytes"),
        ("bad.py", "import potluck\npotluck.Adamw()\n", "line 2: AttributeError: module 'potluck' has no attribute"),
        ("bad.py", "import potluck\npotluck.Adamw()\n", "did you mean Adam?"),
        ("bad.py", JOB_FILE.format(epochs=2) + "potluck.train(job)\n", "line 9: potluck.train is called while the job"),
        ("bad.py", JOB_FILE.format(epochs=0), "line 4: job: epochs 0; give"),
    ],
)
def test_what_is_wrong_with_a_job_file_is_one_line_naming_it(folder, name, text, words):
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(InputError) as caught:
        load_job(f"{folder}/{name}")
    message = str(caught.value)
    assert words in message
    assert str(folder / name.partition(":")[0]) in message
    assert "\n" not in message


def test_only_a_job_is_trained():
    train: Any = potluck.train
    with pytest.raises(InputError, match=r"potluck\.train: the job is a str; give a potluck\.Job"):
        train("job.py")


def test_the_demos_job_does_not_put_our_own_modules_in_the_way_of_the_standard_library():
    folder = Path(potluck.__file__).parent / "commands"
    load_job(folder / "demo_job.py")
    assert str(folder) not in sys.path
