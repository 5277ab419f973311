"""The memory model, term by term against sums done by hand; and the plan that needs no profile."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import PlanError
from potluck.plan.baselines import balanced_cuts, even_plan
from potluck.plan.cost.memory import MemoryUse, peak_bytes
from potluck.plan.validate import validate
from potluck.types import DeviceSpec, Feed, Fleet, Member, Plan, Sharing, Stage
from tests.unit.builders import chain, facts, fleet


def stage(blocks: tuple[int, int], sharing: Sharing = "turns", depth: int | None = None, **shares: int) -> Stage:
    group = tuple(Member(device=name, share=share) for name, share in shares.items())
    return Stage(blocks=blocks, group=group, sharing=sharing, depth=depth)


def test_each_term_of_a_single_device_stage() -> None:
    model = facts(4, weight_bytes=[100, 200, 400, 800], stash_bytes=[1, 2, 4, 8], buffer_bytes=3, sample_bytes=10)
    plan = Plan(
        micro_batch_size=5, micro_batches=8, stages=(stage((0, 1), a=8), stage((1, 3), b=8), stage((3, 4), c=8))
    )
    assert peak_bytes(plan, model)["b"] == MemoryUse(
        weights=600,
        gradients=600,
        optimizer=600,
        activations=6 * 5 * 2,  # bytes per row, rows, two stages to the end
        buffers=2 * 6,
        communication=2 * 5 * (10 * 2 + 10 * 2),  # waiting, rows, in and out with gradients
        sending=600 + 600 - 600 - 60,  # a copy of weights and optimizer state, in the room of gradients and activations
    )
    assert peak_bytes(plan, model)["a"].communication == 2 * 5 * (10 + 10 * 2)  # the feed has no gradient
    assert peak_bytes(plan, model)["b"].total == 600 + 600 + 600 + 60 + 12 + 400 + 540


def test_frozen_weights_cost_no_gradient_and_no_optimizer_state() -> None:
    plan = chain(1)
    use = peak_bytes(plan, facts(1, frozen=(0,), optimizer_slots=2))["d0"]
    assert (use.weights, use.gradients, use.optimizer) == (1000, 0, 0)
    assert peak_bytes(plan, facts(1, optimizer_slots=2))["d0"].optimizer == 2000


def test_blocks_before_the_first_that_is_trained_keep_nothing_for_a_backward_pass() -> None:
    whole = facts(4, frozen=(0, 1, 2))
    crossings = tuple(msgspec.structs.replace(c, gradient=c.producer >= 2) for c in whole.crossings)
    front = msgspec.structs.replace(whole, crossings=crossings)  # the gradient of block 2's output is wanted, say
    plan = Plan(micro_batch_size=5, micro_batches=1, stages=(stage((0, 4), a=1),))
    assert peak_bytes(plan, whole)["a"].activations == 5 * 4000
    assert peak_bytes(plan, front)["a"].activations == 5 * 2000


def test_group_by_samples_stashes_its_rows_and_sums_gradients_beside_its_own() -> None:
    plan = Plan(micro_batch_size=8, micro_batches=4, stages=(stage((0, 2), "samples", a=5, b=3),))
    uses = peak_bytes(plan, facts(2))
    assert (uses["a"].activations, uses["b"].activations) == (2000 * 5, 2000 * 3)
    assert uses["a"].gradients == 2000 + 2000 // 2


def test_group_by_turns_stashes_only_the_turns_that_are_its_own() -> None:
    plan = Plan(micro_batch_size=2, micro_batches=8, stages=(stage((0, 1), depth=3, a=6, b=2), stage((1, 2), c=8)))
    uses = peak_bytes(plan, facts(2))  # turns: a a b a a a b a; of three neighbours at most three are a's, one is b's
    assert (uses["a"].activations, uses["b"].activations) == (1000 * 2 * 3, 1000 * 2 * 1)


def test_a_round_shorter_than_the_depth_stashes_only_what_it_has() -> None:
    assert peak_bytes(chain(3, micro_batches=2), facts(3))["d0"].activations == 1000 * 4 * 2


def test_deeper_stage_before_lets_more_wait_on_the_link() -> None:
    plan = chain(4, depths=[6, 3, 2, 1])
    uses = peak_bytes(plan, facts(4))
    assert uses["d1"].communication == 4 * 4 * (10 * 2 + 10 * 2)  # 6 - 3 + 1 micro-batches of 4 rows
    assert uses["d2"].communication == 2 * 4 * (10 * 2 + 10 * 2)


def test_tied_weight_is_counted_where_it_is_used_and_its_gradient_where_it_is_summed() -> None:
    model = facts(3, weight_bytes=[500, 10, 20], tied=(("layers.0.weight", (0, 2)),))
    uses = peak_bytes(chain(3), model)
    assert (uses["d0"].weights, uses["d0"].gradients, uses["d0"].optimizer) == (500, 500 + 500, 500)
    assert (uses["d1"].weights, uses["d1"].gradients) == (10, 10)
    assert (uses["d2"].weights, uses["d2"].gradients, uses["d2"].optimizer) == (520, 520 + 500, 520)
    together = Plan(micro_batch_size=4, micro_batches=8, stages=(stage((0, 3), a=8),))
    assert peak_bytes(together, model)["a"].gradients == 530, "in one stage there is nothing to sum"


def test_snapshots_are_the_devices_own_and_one_of_the_largest_other_stage() -> None:
    model = facts(3, weight_bytes=[100, 200, 400], buffer_bytes=1, stash_bytes=0)
    without, uses = peak_bytes(chain(3), model), peak_bytes(chain(3), model, snapshot=True)
    assert [uses[d].snapshots for d in ("d0", "d1", "d2")] == [201 + 801, 401 + 801, 801 + 401]
    assert uses["d0"].total == without["d0"].total + 1002
    with pytest.raises(PlanError, match=r"'d0'.*snapshots"):
        validate(chain(3), model, fleet("d1", "d2", d0=uses["d0"].total - 1), snapshot=True)


def test_a_label_used_in_the_middle_is_received_there() -> None:
    model = msgspec.structs.replace(facts(3), feeds=(Feed(name="mask", consumers=(1,), sample_bytes=7),))
    uses = peak_bytes(chain(3), model)
    assert [uses[d].communication // (2 * 4) for d in ("d0", "d1", "d2")] == [20, 47, 20]


@pytest.mark.parametrize("spare", [0, 1])
def test_device_with_exactly_the_memory_fits(spare: int) -> None:
    need = peak_bytes(chain(2), facts(2))["d0"].total
    validate(chain(2), facts(2), fleet("d1", d0=need + spare))
    with pytest.raises(PlanError, match=r"stages\[0\]: 1 bytes too many for 'd0'"):
        validate(chain(2), facts(2), fleet("d1", d0=need - 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.data())
def test_balanced_cuts_are_as_good_as_trying_all(loads: list[int], data: st.DataObject) -> None:
    speeds = data.draw(st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0]), min_size=1, max_size=len(loads)))

    def slowest(cuts: tuple[tuple[int, int], ...]) -> float:
        return max(sum(loads[a:b]) / speed for (a, b), speed in zip(cuts, speeds, strict=True))

    inner = combinations(range(1, len(loads)), len(speeds) - 1)
    every = [tuple(zip([0, *c], [*c, len(loads)], strict=True)) for c in inner]
    found = balanced_cuts(loads, speeds)
    assert found in every
    assert slowest(found) == pytest.approx(min(slowest(cuts) for cuts in every))


def test_even_plan_is_valid_and_gives_the_slow_device_less() -> None:
    model = facts(12)
    devices = [DeviceSpec(name="fast", speed=1.0), DeviceSpec(name="slow", speed=0.5)]
    plan = even_plan(model, devices, micro_batch_size=4, micro_batches=6)
    validate(plan, model, Fleet(devices=tuple(devices)))
    assert [s.blocks for s in plan.stages] == [(0, 8), (8, 12)]
    assert plan.devices == ("fast", "slow")


def test_even_plan_never_has_more_stages_than_blocks_and_keeps_the_fastest_in_order() -> None:
    speeds = {"a": 0.1, "b": 0.5, "c": 1.0}
    devices = [DeviceSpec(name=name, speed=speed) for name, speed in speeds.items()]
    plan = even_plan(facts(2), devices, micro_batch_size=4, micro_batches=6)
    assert plan.devices == ("b", "c")
    assert even_plan(facts(2), devices[:1], 4, 6).devices == ("a",)
    with pytest.raises(PlanError, match="0 devices"):
        even_plan(facts(2), [], 4, 6)


def test_balanced_cuts_when_more_blocks_are_less_trouble() -> None:
    # With two blocks the slow second device must take the large one; with three it can have the small third.
    assert balanced_cuts([1, 100, 1, 50], [1.0, 0.1, 1.0]) == ((0, 2), (2, 3), (3, 4))
