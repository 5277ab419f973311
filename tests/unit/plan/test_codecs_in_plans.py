"""What a codec saves and costs is in every prediction, and a plan whose codec rounds is not called exact."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from potluck.compress.codec_registry import register
from potluck.compress.raw import Raw
from potluck.plan.baselines import even_plan
from potluck.plan.cost.edges import Edges
from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.tables import Tables
from potluck.plan.cost.traffic import Messages
from potluck.plan.events.event_simulation import simulate
from potluck.plan.exactness import said_exact, why_changed_on_the_way, why_not_alike, why_not_uncut
from potluck.types import Crossing, DeviceProfile, DeviceSpec, ModelFacts, Plan, Profile, Stage
from tests.extending.half_precision import Half
from tests.unit.plan.instances import a_model, a_profile

ROWS, COUNT, SLOW_S = 4, 6, 1e-6


class Slow(Raw):
    """Changes nothing, and takes its time."""

    name = "slow"

    def seconds(self, device: DeviceProfile) -> float:
        return SLOW_S


register(Slow())


def floats(model: ModelFacts) -> ModelFacts:
    """The model, whose crossings are vectors of float32."""
    return replace(model, crossings=tuple(_vector(c, c.sample_bytes // 4) for c in model.crossings))


def _vector(crossing: Crossing, width: int) -> Crossing:
    return replace(crossing, dtype="float32", shape=((0, 1), (width, 0)), sample_bytes=4 * width)


FACTS = floats(a_model(3, 9))
PROFILE = a_profile(3, FACTS, (1.0, 0.7, 0.5), bandwidth=1e6)


def planned(*codecs: str) -> Plan:
    devices = tuple(DeviceSpec(name=f"d{i}") for i in range(3))
    plan = even_plan(FACTS, devices, ROWS, COUNT)
    return replace(plan, stages=tuple(replace(s, codec=c) for s, c in zip(plan.stages, codecs, strict=True)))


def seconds(plan: Plan, profile: Profile = PROFILE) -> tuple[float, float]:
    """Of a round, by the cost model and by the simulation."""
    cost = CostModel(FACTS, profile, ROWS, COUNT)
    return float(cost.seconds([cost.of_plan(plan)])[0]), simulate(plan, FACTS, profile).round_s


def test_the_codec_of_the_earlier_stage_counts_in_both_directions() -> None:
    blocks = [s.blocks for s in planned("raw", "raw", "raw").stages]
    out, back = Edges(FACTS).between(blocks)
    half_out, half_back = Edges(FACTS).between(blocks, (Half.name, "raw", Half.name))
    assert half_out == {(0, 1): out[0, 1] / 2, (1, 2): out[1, 2]}
    assert half_back == {(0, 1): back[0, 1] / 2, (1, 2): back[1, 2]}


def test_planned_messages_weigh_what_the_codec_says() -> None:
    tables = Tables(PROFILE)
    raw, half = (Messages(planned(c, "raw", "raw"), FACTS, tables) for c in ("raw", Half.name))
    for device, kind, part in (("d0", "send_outputs", 2), ("d1", "send_gradients", 2), ("d1", "send_outputs", 1)):
        ((before,), (after,)) = raw.leaving(device, kind, 0), half.leaving(device, kind, 0)
        assert after.size_bytes == before.size_bytes / part
        assert after.transfer_s == pytest.approx(before.transfer_s / part)


def test_what_is_no_floating_point_number_weighs_what_it_did() -> None:
    (whole,) = (Crossing(value=0, producer=0, consumers=(1,), sample_bytes=12, gradient=False),)
    assert Edges(FACTS).row_bytes(whole, Half.name) == 12


def test_where_lines_are_slow_half_the_bytes_save_time() -> None:
    for raw, half in zip(seconds(planned("raw", "raw", "raw")), seconds(planned("half", "half", "raw")), strict=True):
        assert half < 0.8 * raw


def test_encoding_and_decoding_take_time_at_both_ends() -> None:
    fast = a_profile(3, FACTS, (1.0, 0.7, 0.5), bandwidth=None)
    out, back = Edges(FACTS).between([s.blocks for s in planned("raw", "raw", "raw").stages])
    least_s = COUNT * ROWS * (out[0, 1] + back[0, 1]) * SLOW_S / 3
    for raw, slow in zip(
        seconds(planned("raw", "raw", "raw"), fast), seconds(planned("slow", "slow", "raw"), fast), strict=True
    ):
        assert slow > raw + least_s
    by_cost, simulated = seconds(planned("slow", "slow", "raw"), fast)
    assert by_cost == pytest.approx(simulated, rel=0.02)


def test_a_plan_keeps_its_codecs_as_json_and_an_old_one_is_raw() -> None:
    plan = planned("half", "raw", "raw")
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    assert msgspec.json.decode(b'{"blocks": [0, 1], "group": []}', type=Stage).codec == "raw"


def test_a_codec_that_rounds_makes_other_bits_but_not_behind_the_last_stage() -> None:
    rounds = planned("raw", "half", "raw")
    assert "leaves stage 1" in why_not_uncut(rounds, FACTS)
    assert why_changed_on_the_way(planned("slow", "raw", "half")) == ""
    machines = dict.fromkeys(("d0", "d1", "d2"), "a laptop")
    assert why_not_alike({rounds}, FACTS, machines) == ""
    assert "codec 'half'" in why_not_alike({rounds, planned("raw", "raw", "raw")}, FACTS, machines)


def test_who_says_that_nothing_is_changed_is_named_where_bits_differ() -> None:
    assert said_exact(planned("slow", "half", "raw")) == "codec 'slow' says that it is exact"
    assert said_exact(planned("slow", "slow", "raw")) == "codec 'slow' says that it is exact"
    assert said_exact(planned("raw", "half", "slow")) == ""  # nothing leaves the last stage
