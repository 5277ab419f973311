"""Every zoo model, cut in 2, 3 and 4 stages, trains with the bits of the uncut program: those of the eager module."""

from __future__ import annotations

import pytest
import torch

from potluck.program.blocks import facts, with_boundaries
from potluck.program.program import encode
from potluck.program.validity import decode
from tests.models.zoo import all_cases, call
from tests.unit.model.pipeline import Pipeline, differing, distance, even_cuts, uncut, uncut_tensors
from tests.unit.model.small_models import build_case, feeds_of, micro_batches

SLOW = {"hf_resnet50", "hf_mobilenet_v2", "hf_efficientnet_b1", "hf_bert_small", "hf_llama", "hf_vit"}
SLOW |= {"inverted_residual"}


def marked(case, slow=False):
    marks = [pytest.mark.hf] if case.hf else []
    if slow or case.name in SLOW:
        marks.append(pytest.mark.full)
    return pytest.param(case, id=case.name, marks=marks)


CASES = [marked(case) for case in all_cases()]
NO_DROPOUT = [marked(case) for case in all_cases() if not case.dropout]
STAGES = pytest.mark.parametrize("stages", [2, 3, 4])


def two_rounds(case, dtype=torch.float32):
    return [micro_batches(case, (4, 4, 4), seed=100 * r, dtype=dtype) for r in (1, 2)]


@pytest.fixture(scope="module")
def trained_uncut(zoo):
    """What the uncut program has after two rounds."""
    done = {}

    def get(case, kernels="quick"):
        if (case.name, kernels) not in done:
            built = zoo(case.name)
            run = uncut(built.programs.with_kernels(kernels), built.state)
            for number, batches in enumerate(two_rounds(case)):
                assert run.round(number, batches).kind == "commit"
            done[case.name, kernels] = uncut_tensors(run)
        return done[case.name, kernels]

    return get


def train_cut(built, rounds, stages):
    assert stages <= built.programs.train.block_count
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, stages))
    for number, batches in enumerate(rounds):
        cut.round(number, batches)
    return cut


def added_up_between_stages(cut):
    """Trainable weights that several stages hold."""
    return [n for n, users in cut.layout.users.items() if len(users) > 1 and n in cut.groups[users[0]][0].trainable]


@STAGES
@pytest.mark.parametrize("case", CASES)
def test_cut_it_trains_with_the_bits_of_the_uncut_program(case, stages, zoo, trained_uncut):
    built = zoo(case.name)
    if case.name == "mlp" and stages == 4:
        stages = 3  # it has three layers
    cut = train_cut(built, two_rounds(case), stages)
    found = cut.tensors()
    assert any(not torch.equal(found[n], built.state[n]) for n in found if n in built.state)
    if not added_up_between_stages(cut):  # their gradients are added in another order: judged in float64 below
        assert differing(found, trained_uncut(case)) == []


@pytest.mark.parametrize("case", [marked(c, slow=c.name != "decoder") for c in all_cases() if c.tied])
def test_a_tied_weight_across_a_cut_gets_both_gradients(case):
    model = case.make_model().double()
    built = build_case(case, model, torch.float64)
    rounds = two_rounds(case, torch.float64)
    run = uncut(built.programs, built.state)
    for number, batches in enumerate(rounds):
        run.round(number, batches)
    for stages in (2, 4):
        cut = train_cut(built, rounds, stages)
        trainable = {n: built.state[n] for n in cut.tensors() if n in built.state}
        assert distance(cut.tensors(), uncut_tensors(run), trainable) <= 1e-8
        for name in added_up_between_stages(cut):
            holders = [cut.groups[s][0].parameters[name] for s in cut.layout.users[name]]
            assert all(torch.equal(holders[0], other) for other in holders[1:])


@pytest.mark.parametrize("case", NO_DROPOUT)
def test_the_uncut_program_trains_with_the_bits_of_the_module(case, zoo, trained_uncut):
    model = case.make_model()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9, foreach=False)
    for batches in two_rounds(case):
        total = float(sum(w.sum() for _, w in batches))
        for feeds, weights in batches:
            inputs = {n: t for n, t in feeds.items() if n != "label"}
            given = tuple(inputs.values()) if "input0" in inputs else inputs.get("input", inputs)
            loss = case.loss(call(model, given), feeds["label"])
            loss.backward(torch.full_like(loss, float(weights.sum()) / total))
        optimizer.step()
        optimizer.zero_grad()
    expected = trained_uncut(case, kernels="torch")
    aliases = zoo(case.name).programs.aliases
    for name, tensor in model.state_dict().items():
        assert torch.equal(expected[aliases.get(name, name)], tensor), name


@pytest.mark.parametrize("case", CASES)
def test_training_and_evaluation_are_cut_at_the_same_places(case, zoo):
    programs = zoo(case.name).programs
    assert programs.train.block_count == programs.eval.block_count
    for stages in (2, 3, programs.train.block_count):
        cuts = even_cuts(programs.train.block_count, stages)
        layout = Pipeline(programs, zoo(case.name).state, cuts).layout
        for train, evaluation in zip(layout.pieces["train"], layout.pieces["eval"], strict=True):
            assert set(train.parameters) == set(evaluation.parameters)


@pytest.mark.parametrize("case", CASES)
def test_a_cut_evaluation_gives_the_outputs_of_the_module(case, zoo):
    built = zoo(case.name)
    model = case.make_model().eval()
    inputs, labels = case.example(3, 9, torch.float32)
    with torch.no_grad():
        expected = call(model, inputs)
    for stages in (1, 3):
        cuts = even_cuts(built.programs.train.block_count, stages)
        feeds = {**feeds_of(case, 3, 9), "label": labels}
        (found,) = Pipeline(built.programs.with_kernels("torch"), built.state, cuts).evaluate(feeds)
        assert torch.equal(found, expected)
        (quick,) = Pipeline(built.programs, built.state, cuts).evaluate(feeds)
        torch.testing.assert_close(quick, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_blocks_follow_from_the_program_alone(case, zoo):
    programs = zoo(case.name).programs
    again = with_boundaries(programs.train, programs.eval, hand_cut=False)
    assert [p.boundaries for p in again] == [programs.train.boundaries, programs.eval.boundaries]
    assert facts(programs, 1) == facts(programs, 1)


@pytest.mark.parametrize("case", CASES)
def test_a_program_travels_as_json(case, zoo):
    programs = zoo(case.name).programs
    data = encode(programs)
    assert decode(data) == programs
    assert encode(decode(data)) == data
    assert decode(data).digest() == programs.digest()


@pytest.mark.parametrize("case", CASES)
def test_samples_meet_where_the_case_says_they_do(case, zoo):
    coupled = any(b.coupled for b in facts(zoo(case.name).programs, 1).blocks)
    assert coupled == case.batch_coupled


def test_the_skips_of_a_unet_do_not_keep_it_in_one_piece(zoo):
    known = facts(zoo("unet").programs, 1)
    assert len(known.blocks) >= 8
    inside = [c for c in known.crossings if len(c.consumers) > 1 or c.consumers[0] - c.producer > 1]
    assert inside, "no long skip crosses a cut"
