"""The zoo is what it says it is: traits are checked, not believed."""

import pytest
import torch
from torch import Tensor, nn

from tests.models.zoo import Case, Inputs, all_cases, call, core_cases

CASES = [pytest.param(c, id=c.name, marks=[pytest.mark.hf, pytest.mark.full] if c.hf else []) for c in all_cases()]
# Parts of a batch with dropout or batch norm give other numbers than the whole.
SEPARABLE = [p for p in CASES if not (p.values[0].dropout or p.values[0].batch_coupled)]  # type: ignore[union-attr]
DTYPES = [torch.float32, torch.float64]


class Training(nn.Module):
    """A model together with its loss, as one program."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.loss = case.make_model().to(dtype), case.loss

    def forward(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(call(self.model, inputs), labels)


pytestmark = pytest.mark.usefixtures("one_thread")


def _rows(inputs: Inputs, start: int, stop: int) -> Inputs:
    match inputs:
        case Tensor():
            return inputs[start:stop]
        case tuple():
            return tuple(t[start:stop] for t in inputs)
        case _:
            return {k: t[start:stop] for k, t in inputs.items()}


def _tensors(inputs: Inputs) -> list[Tensor]:
    match inputs:
        case Tensor():
            return [inputs]
        case tuple():
            return list(inputs)
        case _:
            return list(inputs.values())


def _dynamic(inputs: Inputs):
    axis = {0: torch.export.Dim.DYNAMIC}
    match inputs:
        case Tensor():
            return axis
        case tuple():
            return tuple(axis for _ in inputs)
        case _:
            return dict.fromkeys(inputs, axis)


def test_names_are_unique_and_core_needs_no_transformers():
    names = [c.name for c in all_cases()]
    assert len(set(names)) == len(names)
    assert not any(c.hf for c in core_cases())


@pytest.mark.parametrize("case", CASES)
def test_building_twice_gives_the_same_weights_and_disturbs_no_random_numbers(case: Case):
    torch.manual_seed(7)
    one = case.make_model()
    drawn = torch.rand(1)
    two = case.make_model()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    torch.manual_seed(7)
    assert torch.equal(torch.rand(1), drawn)
    assert one.training


@pytest.mark.parametrize("case", CASES)
def test_examples_depend_on_the_seed_alone(case: Case):
    (one, labels), (two, _), (other, _) = (case.example(4, s, torch.float64) for s in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(two), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))
    assert {len(t) for t in (*_tensors(one), labels)} == {4}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_every_trainable_parameter_gets_a_finite_gradient(case: Case, dtype: torch.dtype):
    training = Training(case, dtype)
    training(*case.example(4, 0, dtype)).backward()
    for name, parameter in training.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.dtype == dtype, name
            assert parameter.grad.isfinite().all(), name
        else:
            assert parameter.grad is None, name


@pytest.mark.parametrize("case", CASES)
def test_traits_are_true(case: Case):
    model = case.make_model().double()
    inputs, _ = case.example(4, 0, torch.float64)
    first = call(model, inputs)
    assert torch.equal(first, call(model, inputs)) is not case.dropout
    if not case.dropout:
        alone = torch.cat([call(model, _rows(inputs, 0, 2)), call(model, _rows(inputs, 2, 4))])
        coupled = not torch.allclose(alone, first, rtol=1e-6, atol=1e-6)
        assert coupled is case.batch_coupled
    names = [n for n, _ in model.named_parameters(remove_duplicate=False)]
    assert (len(names) > len(list(model.parameters()))) is case.tied


@pytest.mark.parametrize("case", SEPARABLE)
def test_loss_of_a_batch_is_the_weighted_mean_of_its_parts(case: Case):
    training = Training(case, torch.float64)
    inputs, labels = case.example(6, 0, torch.float64)
    parts = [(_rows(inputs, a, b), labels[a:b]) for a, b in ((0, 2), (2, 6))]
    weights = [float((y != -100).sum()) if case.loss_weight == "tokens" else float(len(y)) for _, y in parts]
    together = sum(w * training(x, y) for w, (x, y) in zip(weights, parts, strict=True)) / sum(weights)
    assert torch.isclose(training(inputs, labels), together, rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_export_keeps_the_batch_symbolic_and_the_numbers(case: Case):
    training = Training(case, torch.float32)
    inputs, labels = case.example(4, 0, torch.float32)
    shapes = (_dynamic(inputs), {0: torch.export.Dim.DYNAMIC})
    program = torch.export.export(training, (inputs, labels), dynamic_shapes=shapes, strict=False)
    feeds = [n for n in program.graph.nodes if n.name in program.graph_signature.user_inputs]
    assert len(feeds) == len(_tensors(inputs)) + 1
    assert all(isinstance(n.meta["val"].shape[0], torch.SymInt) for n in feeds)
    other = case.example(6, 1, torch.float32)
    losses = []
    for run in (program.module(), training):
        torch.manual_seed(3)
        losses.append(run(*other))
    assert torch.equal(*losses)
