"""Models that cannot be traced are refused with the line and two ways out; a hand-cut list of modules is one."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.errors import InputError, ModelError
from potluck.model.build import as_module, build
from potluck.program.blocks import facts
from tests.unit.model.pipeline import Pipeline, even_cuts
from tests.unit.model.small_models import (
    WIDTH,
    assert_cut_equals_uncut,
    assert_equals_eager,
    build_small,
    vector_batches,
    vectors,
)

ONES = torch.ones(4, dtype=torch.float64)


def pieces():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.Dropout(0.0),
        nn.Sequential(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), nn.Linear(WIDTH, WIDTH)),
    ]


def build_list(modules, loss=F.mse_loss):
    module, hand_cut = as_module(modules)
    assert hand_cut
    return build_small(module, loss, hand_cut=True)


def test_a_list_is_cut_only_between_its_modules():
    built = build_list(pieces())
    for program in (built.programs.train, built.programs.eval):
        begins = [program.nodes[p].module.split(".")[0] for p in program.boundaries]
        before = [program.nodes[p - 1].module.split(".")[0] for p in program.boundaries]
        assert begins == ["1", "2", "4"]
        assert before == ["0", "1", "2"]
    owned = [b.parameters for b in facts(built.programs, 1).blocks]
    assert [{n.split(".")[0] for n in names} for names in owned] == [{"0"}, set(), {"2"}, {"4"}]


def test_its_state_dict_is_that_of_a_sequential():
    built = build_list(pieces())
    whole = nn.Sequential(*pieces())
    assert set(built.state) == set(whole.state_dict())
    assert_equals_eager(built, whole, stages=4)


def test_without_a_list_the_same_modules_are_cut_anywhere():
    model, hand_cut = as_module(nn.Sequential(*pieces()))
    assert not hand_cut
    assert build_small(model).programs.train.block_count > build_list(pieces()).programs.train.block_count


def test_what_passes_between_modules_may_be_several_tensors():
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.layer(x), x

    class Join(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, both):
            return self.layer(both[0]) + both[1] * both[0]

    torch.manual_seed(0)
    built = build_list([Split(), Join(), nn.Linear(WIDTH, WIDTH)])
    assert built.programs.train.block_count == 3
    assert_cut_equals_uncut(built, [vector_batches((4, 3))], stages=3)


@pytest.mark.parametrize(
    "given",
    [[], [nn.ReLU(), 3], "model", 7, lambda: None],
    ids=["nothing", "not a module", "text", "number", "gives nothing"],
)
def test_what_is_no_model_is_refused(given):
    with pytest.raises(InputError, match=r"give an nn\.Module, a function that returns one, or a list of modules"):
        as_module(given)


def test_a_function_that_fails_is_named_with_its_line():
    def make():
        return nn.Linear(3)  # type: ignore[call-arg]

    with pytest.raises(InputError, match=r"test_rules_hand_cut\.py:\d+: model: make fails: TypeError: .*out_features"):
        as_module(make)


def test_a_function_may_make_the_model_or_the_list():
    assert as_module(lambda: nn.Linear(2, 2))[1] is False
    module, hand_cut = as_module(lambda: pieces())
    assert hand_cut
    assert len(list(module.children())) == 5


def test_a_list_takes_one_input():
    feeds = vectors(4)
    two = {"input0": feeds["input"], "input1": feeds["input"], "label": feeds["label"]}
    with pytest.raises(ModelError, match="takes one input, the data has 2"):
        build(nn.Sequential(*pieces()), F.mse_loss, two, ONES, hand_cut=True)


class Chooser(nn.Module):
    """Looks at its values to decide which way to go."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.first(x)
        if x.sum() > 0:  # here
            x = x * 2
        return self.second(x)


def line(function, words):
    lines, first = inspect.getsourcelines(function)
    return f"test_rules_hand_cut.py:{first + next(i for i, text in enumerate(lines) if words in text)}"


def test_a_model_that_looks_at_its_values_is_refused_with_the_line_and_the_ways_out(capfd, caplog):
    with pytest.raises(ModelError):
        build_small(Untraceable(lambda x: x * 2 if x.sum() > 0 else x))
    with pytest.raises(ModelError) as refused:
        build_small(Chooser())
    message = str(refused.value)
    assert message.startswith(line(Chooser.forward, "# here") + ": ")
    assert "torch.where" in message
    assert "hand-cut as a list of modules" in message
    assert "\n" not in message
    said = capfd.readouterr()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.out + said.err == ""  # no graph, no warning: the one line says it


def test_hand_cutting_helps_where_the_choice_is_between_the_modules():
    """The forward of the whole looks at values; its modules do not."""

    class Retrying(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x = self.body(x)
            if not torch.isfinite(x).all():
                raise ValueError("not finite")
            return self.head(x)

    torch.manual_seed(0)
    model = Retrying()
    with pytest.raises(ModelError, match="hand-cut"):
        build_small(model)
    built = build_list([model.body, model.head])
    cut = Pipeline(built.programs, built.state, even_cuts(2, 2))
    feeds = vectors(3)
    assert torch.equal(cut.evaluate(feeds)[0], model(feeds["input"]).detach())


def test_a_module_of_the_list_that_cannot_be_traced_is_named():
    with pytest.raises(ModelError) as refused:
        build_list([nn.Linear(WIDTH, WIDTH), Chooser(), nn.Linear(WIDTH, WIDTH)])
    message = str(refused.value)
    assert message.startswith("module 1 of the list (Chooser): " + line(Chooser.forward, "# here"))
    assert "\n" not in message


class Untraceable(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.layer, self.step = nn.Linear(WIDTH, WIDTH), step

    def forward(self, x):
        return self.layer(self.step(x))


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x * x.abs().max().item(),
        lambda x: x * int(x.abs().sum()),
        lambda x: x + x[x[:, 0] > 0].sum(),
        lambda x: x + x.nonzero().sum(),
        lambda x: x + torch.unique(x).sum(),
        lambda x: x + torch.from_numpy(x.detach().numpy()),
        lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
        lambda x: x + len(x),
        lambda x: torch.stack([row * 2 for row in x]),
        lambda x: x + x.nothing,
    ],
    ids=["item", "int", "mask", "nonzero", "unique", "numpy", "cond", "len", "loop", "mistake"],
)
def test_every_refusal_is_one_line_that_names_the_place(step):
    with pytest.raises(ModelError) as refused:
        build_small(Untraceable(step))
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 600
    assert message.startswith(("test_rules_hand_cut.py:", "the model: the model or the loss works for one batch size"))


def test_autocast_is_refused_unless_it_is_switched_off():
    class Cast(nn.Module):
        def __init__(self, enabled):
            super().__init__()
            self.layer, self.enabled = nn.Linear(WIDTH, WIDTH), enabled

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
                return self.layer(x).float()

    with pytest.raises(ModelError, match=r"autocast .*model.bfloat16\(\)"):
        build_small(Cast(True))
    torch.manual_seed(0)
    built = build_small(Cast(False))
    torch.manual_seed(0)
    assert_equals_eager(built, Cast(False))


def test_a_single_sample_is_too_little_to_learn_from():
    with pytest.raises(InputError, match="at least 2 samples"):
        build(nn.Linear(WIDTH, WIDTH), F.mse_loss, vectors(1), torch.ones(1))
