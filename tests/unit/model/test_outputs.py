"""What a model returns besides tensors, and how its outputs arrive where they are judged: as the object it returned."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.coordinator.serving.whole_evaluation import WholeEvaluation
from potluck.errors import InputError, ModelError
from potluck.model.outputs import LeftOut, Outputs, take_apart
from potluck.model.source_lines import explain_export_failure
from tests.unit.model.pipeline import Pipeline, even_cuts
from tests.unit.model.small_models import WIDTH, assert_cut_equals_uncut, build_small, vector_batches, vectors

CLASSES = 3


class Cache:
    """What a decoder keeps of the past: no tensor, and nothing that can be taken apart."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


@dataclasses.dataclass
class ModelOutput(OrderedDict[str, Any]):
    """Fields that are not None are also keys, and positions: what a model of a well-known library returns."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) is not None:
                self[field.name] = value

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


class Decoder(nn.Module):
    """Two layers whose output is an object, with its own loss where labels are given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)])

    def forward(self, x: Tensor, labels: Tensor | None = None) -> ModelOutput:
        hidden = torch.tanh(self.layers[0](x))
        logits = self.layers[1](hidden)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ModelOutput(loss=loss, logits=logits, past_key_values=Cache(hidden), hidden_states=(x, hidden))


def of_logits(outputs: Any, labels: Tensor) -> Tensor:
    assert isinstance(outputs, ModelOutput)
    assert outputs.logits is outputs["logits"] is outputs[0]
    return F.cross_entropy(outputs.logits, labels)


def correct(outputs: Any, labels: Tensor) -> float:
    assert isinstance(outputs, ModelOutput)
    assert outputs.logits is outputs["logits"]
    return float((outputs.logits.argmax(1) == labels).double().mean())


class Fed(torch.utils.data.Dataset[Any]):
    """Samples of which the model, too, is given the labels."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return {"x": self.x[index], "labels": self.y[index]}, self.y[index]


def samples(count: int = 22) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.randn(count, WIDTH, generator=random), torch.randint(CLASSES, (count,), generator=random)


def job(**changes: Any) -> potluck.Job:
    base = potluck.Job(
        model=Decoder, loss=of_logits, optimizer=potluck.SGD(lr=0.1), data=samples(), eval_data=samples(),
        batch_size=8, rounds=2, metrics={"correct": correct}, kernels="torch",
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def evaluated(what: potluck.Job) -> tuple[float, dict[str, float]]:
    """The evaluation of an untrained model, as around a parameter server."""
    prepared = prepare_job(what)
    evaluation = WholeEvaluation(prepared)
    try:
        loss, metrics, count = evaluation.run(prepared.built.state)
    finally:
        evaluation.close()
    assert count == 22
    return loss, metrics


def test_a_cache_among_the_outputs_is_left_out_with_one_line():
    notes: list[str] = []
    prepared = prepare_job(job(), notes.append)
    assert notes == ["evaluation leaves out what is no tensor: past_key_values (Cache)"]
    assert prepared.built.programs.eval.output_names == ("logits", "hidden_states.0", "hidden_states.1")


def test_nothing_is_said_where_all_outputs_are_tensors():
    notes: list[str] = []
    prepare_job(job(model=nn.Linear(WIDTH, CLASSES), loss=F.cross_entropy, metrics={}), notes.append)
    assert notes == []


def test_the_loss_trains_on_the_object_that_the_model_returns():
    model = Decoder()
    built = build_small(model, lambda o, y: F.mse_loss(o.logits, y[:, :CLASSES]))
    assert_cut_equals_uncut(built, [vector_batches((4, 3))], stages=2)


def test_metrics_and_loss_get_the_object_that_the_model_returns():
    loss, metrics = evaluated(job())
    x, y = samples()
    with torch.no_grad():
        expected = Decoder().eval()(x)
    assert loss == pytest.approx(float(of_logits(expected, y)), rel=1e-6)
    assert metrics == {"correct": correct(expected, y)}


def test_positions_are_those_of_the_models_own_object():
    built = build_small(Decoder(), lambda o, y: F.mse_loss(o.logits, y[:, :CLASSES]))
    feeds = vectors(3)
    expected = Decoder().eval()(feeds["input"])
    given = built.outputs.make(Pipeline(built.programs, built.state, even_cuts(2, 2)).evaluate(feeds))
    assert (type(given), [*given]) == (ModelOutput, [*expected])
    assert given.loss is None
    assert torch.equal(given[0], expected[0])
    assert isinstance(given[1], LeftOut)
    assert all(torch.equal(a, b) for a, b in zip(given[2], expected.hidden_states, strict=True))


def test_a_model_that_computes_its_own_loss_is_judged_by_it():
    own = job(data=Fed(*samples()), eval_data=Fed(*samples()), loss=lambda outputs, labels: outputs.loss,
              metrics={"own": lambda outputs, labels: outputs.loss.item()})  # fmt: skip
    loss, metrics = evaluated(own)
    x, y = samples()
    with torch.no_grad():
        expected = float(Decoder().eval()(x, y).loss)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert metrics["own"] == pytest.approx(expected, rel=1e-6)  # a mean over parts of unequal size


def test_one_number_for_all_samples_is_no_row_of_reduce():
    reduced = job(reduce=lambda o, y: F.cross_entropy(o.logits, y), metrics={"m": lambda o, y: 0.0}, best="m")
    with pytest.raises(InputError, match="holds no samples along any axis"):
        evaluated(reduced)


def flattened(outputs: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(1), labels)


class InATuple(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), None


class InADict(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return {"values": super().forward(x)}


class Words(nn.Embedding):
    def forward(self, x: Tensor) -> Any:
        return ModelOutput(logits=super().forward(x))


WORDS = (torch.zeros(12, 4, dtype=torch.long), torch.zeros(12, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss": F.cross_entropy}, "loss=lambda outputs, labels: F.cross_entropy(outputs.logits, labels)"),
        ({"loss": F.mse_loss}, "loss=lambda outputs, labels: F.mse_loss(outputs.logits, labels)"),
        ({"loss": nn.CrossEntropyLoss()}, "nn.CrossEntropyLoss()(outputs.logits, labels)"),
        ({"loss": flattened}, "loss=lambda outputs, labels: flattened(outputs.logits, labels)"),
        ({"loss": lambda o, y: F.cross_entropy(o, y)}, "take what the loss needs: outputs.logits ("),
        ({"loss": F.cross_entropy, "model": InATuple(WIDTH, CLASSES)}, "F.cross_entropy(outputs[0], labels)"),
        ({"loss": F.cross_entropy, "model": InADict(WIDTH, CLASSES)}, "F.cross_entropy(outputs['values'], labels)"),
        (
            {"loss": F.cross_entropy, "model": Words(5, 5), "data": WORDS, "eval_data": None},
            "F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())",
        ),
        ({"metrics": {"m": lambda o, y: o.argmax(1)}}, "job: metric 'm': the model returns a ModelOutput"),
        (
            {"reduce": lambda o, y: o.argmax(1), "metrics": {"m": correct}, "best": "m"},
            "take what the reduce needs: outputs.logits",
        ),
        (
            {"metrics": {"m": lambda o, y: o.past_key_values.keys.sum()}},
            "AttributeError: evaluation leaves out past_key_values (Cache), which is no tensor",
        ),
    ],
)
def test_a_function_that_takes_the_object_for_a_tensor_is_told_what_to_take(changes, says):
    with pytest.raises(InputError) as caught:
        prepare_job(job(**{"metrics": {}, **changes}))
    assert says in str(caught.value)
    assert str(caught.value).startswith("job: ")
    assert "\n" not in str(caught.value)


def test_an_error_within_the_loss_stays_what_it_is():
    with pytest.raises(InputError, match=r"fails on the first samples of data .*: TypeError: tuple of three wanted"):
        prepare_job(job(loss=lambda o, y: wants_three()))


def wants_three() -> Tensor:
    raise TypeError("tuple of three wanted")


def test_where_nothing_could_be_tried_before_tracing_says_what_to_take():
    with pytest.raises(ModelError, match=r"F\.mse_loss\(outputs\.logits, labels\)"):
        build_small(Decoder(), F.mse_loss)


def test_a_cache_that_cannot_be_traced_names_the_switch():
    text = 'Could not guard\n  File "/x/site-packages/transformers/cache_utils.py", line 99, in update\n'
    found = str(explain_export_failure(RuntimeError(text)))
    assert "cache_utils.py:99" in found
    assert "set use_cache=False in the model's config" in found
    assert "use_cache" not in str(explain_export_failure(RuntimeError("Could not guard")))


def test_a_model_without_any_tensor_is_refused():
    with pytest.raises(ModelError, match=r"gives no tensor in evaluation but a dict \(count\)"):
        take_apart({"count": {1, 2}})


class Odd(dict[str, Any]):
    """A class that cannot be made from what it holds."""

    def __init__(self, out: Tensor, more: int) -> None:
        super().__init__(out=out)


def test_an_object_that_cannot_be_made_again_is_read_by_name():
    form, tensors = take_apart(Odd(torch.ones(2), 3))
    given = form.make(tensors)
    assert type(given) is Outputs
    assert given.out is given["out"] is tensors[0]
    with pytest.raises(AttributeError, match="no output 'other', only out"):
        _ = given.other


def test_numbers_and_words_among_the_outputs_stay():
    form, tensors = take_apart({"out": torch.ones(2), "kind": "logits", "layers": 3, 7: [1.5, None]})
    assert form.left_out == ()
    assert form.make([torch.zeros(2)])["layers"] == 3
    assert form.make(tensors) == {"out": tensors[0], "kind": "logits", "layers": 3, 7: [1.5, None]}
