"""An optimizer over a stage gives the bits of torch.optim over the whole model."""

import subprocess
import sys
from collections import Counter
from typing import Any

import msgspec
import pytest
import torch

from potluck.compute.stage_optimizer import StageOptimizer
from potluck.errors import InputError
from potluck.job.optimizer_state import counter_names, slots
from potluck.job.optimizers import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    ParamGroup,
    RMSprop,
    rule_for,
)

SPECS = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    SGD(lr=0.1, momentum=0.9, dampening=0.5),
    Adam(lr=0.01, weight_decay=0.1),
    Adam(lr=0.01, amsgrad=True),
    AdamW(lr=0.01),
    NAdam(lr=0.01, weight_decay=0.1),
    NAdam(lr=0.01, betas=(0.99, 0.999), weight_decay=0.1, momentum_decay=0.01, decoupled_weight_decay=False),
    RMSprop(lr=0.01),
    RMSprop(lr=0.01, momentum=0.9, centered=True, weight_decay=0.1),
    Adagrad(lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5),
    Muon(lr=0.02, match=("a.weight", "b.weight"), rest=AdamW(lr=0.01)),
    Muon(lr=0.02, momentum=0.8, nesterov=False, adjust_lr_fn="match_rms_adamw", match=("b.weight",), ns_steps=4),
]
OURS = ("groups", "match", "rest", "discounted", "feedback")  # torch knows nothing of them
GROUPS = (
    ParamGroup(match=("c.*", "*.bias"), overrides={"weight_decay": 0.0, "lr": 0.02}),
    ParamGroup(match=("b.weight",), overrides={"weight_decay": 0.3}),
)
NAMES = ("a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias")
SCALES = (0.5, 1.0, 1.0, 0.25, 0.1)


def parameters():
    generator = torch.Generator().manual_seed(3)
    return {n: torch.randn(4, 3 if n.endswith("weight") else 1, generator=generator) for n in NAMES}


def gradients(round):
    generator = torch.Generator().manual_seed(100 + round)
    return {n: torch.randn(4, 3 if n.endswith("weight") else 1, generator=generator) for n in NAMES}


def train(optimizers, weights, rounds=range(5)):
    for round in rounds:
        for name, gradient in gradients(round).items():
            weights[name].grad = gradient
        for optimizer in optimizers:
            optimizer.step(SCALES[round])
    return weights


def with_plain_torch(spec, grouped):
    weights = parameters()
    optimizers = [
        made for rule, names in parted(spec) for made in (plain_torch(rule, weights, names, grouped),) if made
    ]
    base = [[g["lr"] for g in optimizer.param_groups] for optimizer in optimizers]
    for round in range(5):
        for name, gradient in gradients(round).items():
            weights[name].grad = gradient
        for optimizer, rates in zip(optimizers, base, strict=True):
            for group, lr in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = lr * SCALES[round]
            optimizer.step()
    return weights


def parted(spec):
    """Which numbers train which parameters: Muon leaves those that it does not name to its AdamW."""
    if not isinstance(spec, Muon):
        return [(spec, NAMES)]
    return [(spec, spec.match), (spec.rest, [n for n in NAMES if n not in spec.match])]


def plain_torch(rule, weights, names, grouped):
    numbers = {k: v for k, v in msgspec.structs.asdict(rule).items() if k not in OURS}
    c = [n for n in names if n.startswith("c.") or n.endswith(".bias")] if grouped else []
    b = [n for n in names if n == "b.weight"] if grouped else []
    shares = [([n for n in names if n not in (*b, *c)], {}), (c, {"weight_decay": 0.0, "lr": 0.02})]
    shares.append((b, {"weight_decay": 0.3}))
    groups: list[dict[str, Any]] = [{"params": [weights[n] for n in few], **own} for few, own in shares if few]
    return getattr(torch.optim, type(rule).__name__)(groups, **numbers) if groups else None


def with_groups(spec, groups):
    if isinstance(spec, Muon):
        spec = msgspec.structs.replace(spec, rest=msgspec.structs.replace(spec.rest, groups=groups))
    return msgspec.structs.replace(spec, groups=groups)


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_one_optimizer_two_and_torch_give_the_same_bits(spec, grouped):
    spec = with_groups(spec, GROUPS if grouped else ())
    one = parameters()
    train([StageOptimizer(spec, one)], one)
    two = parameters()
    halves = [{n: two[n] for n in NAMES[::2]}, {n: two[n] for n in NAMES[1::2]}]
    train([StageOptimizer(spec, half) for half in halves], two)
    assert not same(one, parameters())
    assert same(one, two)
    assert same(one, with_plain_torch(spec, grouped))


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_state_moved_to_other_optimizers_goes_on_with_the_same_bits(spec):
    spec = with_groups(spec, GROUPS)
    whole = train([StageOptimizer(spec, w := parameters())], w)
    start = parameters()
    first = StageOptimizer(spec, start)
    train([first], start, range(3))
    saved = first.state()
    moved = {n: t.clone() for n, t in start.items()}
    parts: list[StageOptimizer] = []
    for names in (NAMES[:1], NAMES[1:]):
        parts.append(StageOptimizer(spec, {n: moved[n] for n in names}))
        parts[-1].load({k: t for k, t in saved.items() if k.rpartition("/")[0] in names})
    train(parts, moved, range(3, 5))
    assert same(moved, whole)
    train([first], start, range(3, 5))
    assert same(start, whole)  # loading copied: the first one was not disturbed


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_slots_counts_the_tensors_that_state_holds(spec):
    weights = parameters()
    optimizer = StageOptimizer(spec, weights)
    train([optimizer], weights)
    shaped = Counter(
        name
        for name, _, slot in (key.rpartition("/") for key in optimizer.state())
        if slot not in counter_names(rule_for(spec, name))
    )
    assert max(shaped.values(), default=0) == slots(spec)
    assert set(shaped.values()) == ({1, 2} if isinstance(spec, Muon) else {slots(spec)} - {0})


def test_slots_is_that_of_the_group_that_keeps_most():
    group = ParamGroup(match=("a.*",), overrides={"momentum": 0.5})
    assert slots(SGD(lr=0.1, groups=(group,))) == 1


def test_state_keys_are_parameter_and_slot():
    weights = parameters()
    optimizer = StageOptimizer(Adam(), {"a.weight": weights["a.weight"]})
    weights["a.weight"].grad = torch.ones(4, 3)
    optimizer.step()
    assert set(optimizer.state()) == {"a.weight/step", "a.weight/exp_avg", "a.weight/exp_avg_sq"}


def test_counters_are_one_number_each_on_the_cpu():
    weights = parameters()
    optimizer = StageOptimizer(NAdam(), weights)
    train([optimizer], weights)
    kept = optimizer.state()
    other = StageOptimizer(NAdam(), parameters())
    other.load(kept)
    counters = {k: t for k, t in other.state().items() if k.endswith(("/step", "/mu_product"))}
    assert len(counters) == 2 * len(NAMES)
    assert all(t.shape == () and t.device.type == "cpu" for t in counters.values())
    assert counters["a.weight/mu_product"] == kept["a.weight/mu_product"] < 1


def test_a_stage_without_parameters_does_nothing():
    optimizer = StageOptimizer(Adam(), {})
    optimizer.step()
    optimizer.load({})
    assert optimizer.state() == {}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"z.weight/exp_avg": torch.zeros(4, 3)}, "no such parameter"),
        ({"a.weight/exp_avg": torch.zeros(4, 3)}, "keeps exp_avg, exp_avg_sq, step"),
        ({f"a.weight/{s}": torch.zeros(2) for s in ("exp_avg", "exp_avg_sq", "step")}, "shape"),
    ],
)
def test_state_of_something_else_is_refused(state, words):
    with pytest.raises(InputError, match=words):
        StageOptimizer(Adam(), parameters()).load(state)


def test_the_state_of_adam_is_not_that_of_nadam():
    weights = parameters()
    adam = StageOptimizer(Adam(), weights)
    train([adam], weights)
    with pytest.raises(InputError, match="NAdam keeps exp_avg, exp_avg_sq, mu_product, step; load"):
        StageOptimizer(NAdam(), parameters()).load(adam.state())
    wrong = {f"a.weight/{s}": torch.zeros(4, 3) for s in ("exp_avg", "exp_avg_sq", "mu_product")}
    with pytest.raises(InputError, match=r"'a\.weight/mu_product' has shape"):
        StageOptimizer(NAdam(), parameters()).load({**wrong, "a.weight/step": torch.tensor(1.0)})


def test_muon_must_be_told_its_matrices_before_it_trains():
    with pytest.raises(ValueError, match="not resolved"):
        StageOptimizer(Muon(), parameters())


def test_a_spec_travels_as_json():
    for spec in SPECS:
        sent = with_groups(spec, GROUPS)
        data = msgspec.json.encode(sent)
        assert f'"type":"{type(spec).__name__}"'.encode() in data
        assert msgspec.json.decode(data, type=Optimizer) == sent


text: Any = "a.*"


def test_one_pattern_may_be_written_without_a_tuple():
    assert ParamGroup(match=text, overrides={}).match == ("a.*",)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(lr=-1),
        lambda: SGD(lr=text),
        lambda: SGD(lr=0.1, nesterov=True),
        lambda: SGD(lr=0.1, momentum=0.9, discounted=True),
        lambda: SGD(lr=0.1, momentum=1.0, nesterov=True, discounted=True),
        lambda: Adam(betas=(0.9, 1.0)),
        lambda: Adam(eps=float("nan")),
        lambda: NAdam(betas=(0.9, 1.0)),
        lambda: NAdam(momentum_decay=-1),
        lambda: Muon(rest=text),
        lambda: Muon(match=(":biases",)),
        lambda: Muon(groups=(ParamGroup(match=(":norms",), overrides={}),)),
        lambda: Muon(groups=(ParamGroup(match=("a",), overrides={"ns_steps": 3}),)),
        lambda: Muon(adjust_lr_fn=text),
        lambda: Muon(ns_steps=100),
        lambda: Muon(ns_steps=text),
        lambda: NAdam(decoupled_weight_decay=text),
        lambda: SGD(lr=0.1, momentum=0.9, nesterov=text),
        lambda: Adam(groups=(ParamGroup(match=("a",), overrides={"momentum": 1}),)),
        lambda: Adam(groups=(ParamGroup(match=("a",), overrides={"lr": -1}),)),
        lambda: ParamGroup(match=(":weights",), overrides={}),
        lambda: ParamGroup(match=(), overrides={}),
    ],
)
def test_impossible_numbers_are_refused(make):
    with pytest.raises(InputError, match="optimizer"):
        make()


@pytest.mark.parametrize("spec", ["AdamW(lr=0.1)", "NAdam()", "Muon(match=('p',))"])
def test_an_update_does_not_import_the_compiler(spec: str) -> None:
    """It would cost a device 1.5 CPU-seconds before its first round."""
    program = (
        "import sys, torch\n"
        "from potluck.compute.stage_optimizer import StageOptimizer\n"
        "from potluck.job.optimizers import AdamW, Muon, NAdam\n"
        "p = torch.nn.Parameter(torch.zeros(3, 3))\n"
        f"optimizer = StageOptimizer({spec}, {{'p': p}})\n"
        "p.grad = torch.ones(3, 3)\n"
        "optimizer.step()\n"
        "assert p[0, 0] != 0\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
