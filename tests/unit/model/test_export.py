"""What is written down of a traced form: one small model for most of it, as a trace takes its time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.errors import ModelError
from potluck.model.export import export_program
from potluck.model.forms import EvalForm, TrainForm
from potluck.model.rewrite import rewrite_call
from potluck.model.trace import trace
from potluck.program.program import Items, NonFinite, Program, Ref

ROWS, WIDTH = 4, 6
FEEDS = {"input": torch.ones(ROWS, WIDTH), "label": torch.ones(ROWS, WIDTH)}


class Mixture(nn.Module):
    """Something of everything that is rewritten."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.register_buffer("scale", torch.full((WIDTH,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.norm(self.first(x)))
        x[:, 0].add_(1)
        x = F.dropout(x, 0.5, self.training)
        with torch.no_grad():
            mask = self.frozen(x) > 0
        x = x.masked_fill(mask, float("-inf")).clamp(min=-1)
        return (x.unsqueeze(1) * self.get_buffer("scale")).squeeze().reshape(x.shape[0] * WIDTH).reshape(-1, WIDTH)


@pytest.fixture(scope="module")
def train() -> Program:
    torch.manual_seed(0)
    return export_program(TrainForm(Mixture().train(), F.mse_loss), FEEDS, "train")


def ops(program: Program) -> Counter[str]:
    return Counter(node.op for node in program.nodes)


def test_nothing_is_changed_in_place_and_a_slice_is_written_back(train: Program) -> None:
    assert not [op for op in ops(train) if op.split(".")[1].endswith("_")]
    assert ops(train)["aten.relu.default"] == 1
    assert ops(train)["aten.select_scatter.default"] == 1
    made: set[int] = {source.id for source in train.sources}
    for node in train.nodes:
        assert {arg.id for arg in node.args if isinstance(arg, Ref)} <= made
        made |= set(node.outputs)
    assert set(train.outputs) <= made


def test_sources_are_what_they_were_in_the_model(train: Program) -> None:
    kinds = {source.name: (source.kind, source.trainable) for source in train.sources}
    assert kinds["first.weight"] == ("parameter", True)
    assert kinds["frozen.weight"] == ("parameter", False)
    assert kinds["norm.running_mean"][0] == "buffer"
    assert [name for name, (kind, _) in kinds.items() if kind == "input"] == ["input", "label"]
    assert [name for name, (kind, _) in kinds.items() if kind == "constant"] == ["constant:model.scale"]


def test_statistics_are_results_and_random_numbers_have_a_salt(train: Program) -> None:
    updates = {update.buffer: (update.kind, update.amount) for update in train.updates}
    assert updates == {
        "norm.running_mean": ("mean", 0.1),
        "norm.running_var": ("variance", 0.1),
        "norm.num_batches_tracked": ("count", 1),
    }
    [dropout] = [node for node in train.nodes if node.op == "potluck.dropout"]
    assert dropout.args[1:] == (0.5, False, 1)


def test_shapes_follow_the_batch_and_only_axes_of_one_are_squeezed(train: Program) -> None:
    [squeeze] = [node for node in train.nodes if node.op.startswith("aten.squeeze")]
    assert squeeze.args[1] == Items((1,))
    assert train.values[squeeze.outputs[0]].shape == ("b", WIDTH)
    assert train.values[train.outputs[0]].shape == ()


def test_regions_without_gradients_and_numbers_that_json_lacks_are_said(train: Program) -> None:
    assert [node.op for node in train.nodes if node.no_grad] == ["aten.linear.default", "aten.gt.Scalar"]
    [fill] = [node for node in train.nodes if node.op == "aten.masked_fill.Scalar"]
    assert fill.args[2] == NonFinite("-inf")


def test_every_node_names_its_line_and_its_module(train: Program) -> None:
    assert {node.source.partition(":")[0] for node in train.nodes} == {"test_export.py", "the loss"}
    [norm] = [node for node in train.nodes if node.op == "potluck.batch_norm"]
    assert norm.module == "norm"


class Through(nn.Module):
    """A function as a model."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x * self.weight)


def keeps(model: Through, x: Tensor) -> Tensor:
    view, y = x.view(-1), x.add_(1)
    return y + view.sum()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda model, x: x + torch.rand_like(x), "draws random numbers, which only dropout may do"),
        (keeps, "changes a tensor in place while a view of it is used later"),
        (lambda model, x: model.weight.detach().add_(1) + x, "changes a parameter in place"),
        (lambda model, x: x[x.sum(1) > 0], "depends on the values of the data"),
        (lambda model, x: x.reshape(4, WIDTH), "works for one batch size only"),
    ],
)
def test_what_a_program_cannot_say_is_refused_in_a_line(function: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        export_program(EvalForm(Through(function)), FEEDS, "eval")
    assert "\n" not in str(caught.value)


def test_a_loss_must_give_one_number() -> None:
    with pytest.raises(ModelError, match=r"the loss gives a float32 tensor of shape \['b', 6\]; it must give one numb"):
        export_program(TrainForm(Through(lambda model, x: x), lambda outputs, labels: outputs), FEEDS, "train")


def test_an_operator_that_is_not_torchs_is_refused() -> None:
    node = torch.fx.Graph().call_function(len, ([],))
    with pytest.raises(ModelError, match="len is not an operator of torch"):
        rewrite_call(None, node, "len")  # type: ignore[arg-type]


def test_a_trace_tells_what_the_forward_keeps_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def remembers(model: Through, x: Tensor) -> Tensor:
        model.last = x
        return x

    _, assigned = trace(EvalForm(Through(remembers)), FEEDS)
    assert assigned == {"model.last"}
    assert capsys.readouterr() == ("", "")


def test_an_error_of_the_forward_is_said_in_one_line() -> None:
    def fails(model: Through, x: Tensor) -> Tensor:
        raise KeyError("two\nlines")

    with pytest.raises(ModelError, match="two") as caught:
        trace(EvalForm(Through(fails)), FEEDS)
    assert "\n" not in str(caught.value)
