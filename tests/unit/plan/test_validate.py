"""A plan that cannot run gets the very message that docs/plan-format.md promises."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from potluck.compress import codec_registry
from potluck.errors import PlanError
from potluck.plan.schedule.holders import turns
from potluck.plan.validate import read_plan, validate
from potluck.types import Plan
from tests.unit.builders import chain, facts, fleet

DOCS = (Path(__file__).parents[3] / "docs" / "plan-format.md").read_text()
EXAMPLE = re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)[0]
PROMISED = {" ".join(m.replace("\\|", "|").split()) for m in re.findall(r"`(plan(?:\.json)?: [^`]*)`", DOCS)}

MODEL = facts(12, coupled=(10,), exclusive=(2,))
FLEET = fleet("desk", "nano2", "pi1", "pi2", nano1=80_000)


@pytest.fixture(autouse=True)
def nothing_but_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests make codecs known."""
    monkeypatch.setattr(codec_registry, "_known", {"raw": codec_registry.codec_named("raw")})


def changed(*changes: tuple[str, object]) -> Any:
    """The example with values put at paths like `stages.1.blocks`; ... takes the key away."""
    tree = json.loads(EXAMPLE)
    for path, value in changes:
        *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        place = tree
        for key in way:
            place = place[key]
        if value is ...:
            del place[last]
        elif isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value
    return tree


def member(device: str, share: int) -> dict[str, object]:
    return {"device": device, "share": share}


UNFIT: list[tuple[list[tuple[str, object]], str]] = [
    ([("stages.1.blocks", [5, 9])], "plan: stages[1].blocks: [5, 9] leaves a gap"),
    ([("stages.1.blocks", [3, 9])], "plan: stages[1].blocks: [3, 9] begins before"),
    ([("stages.1.blocks", [4, 4])], "plan: stages[1].blocks: [4, 4] holds no block"),
    ([("stages.2.blocks", [9, 13])], "plan: stages[2].blocks: [9, 13] goes past"),
    ([("stages.2.blocks", [9, 11])], "plan: stages[2].blocks: [9, 11] leaves out"),
    ([("stages.0.group", [])], "plan: stages[0].group: is empty"),
    ([("stages.0.group.0.device", "desktop")], "plan: stages[0].group[0].device: 'desktop' is not in the fleet"),
    ([("stages.2.group.1.device", "nano1")], "plan: stages[2].group[1].device: 'nano1' is already"),
    ([("stages.2.group.1.share", 0)], "plan: stages[2].group[1].share: 0 is no work"),
    ([("stages.1.group.1.share", 1), ("stages.1.group.0.share", 7)], "plan: stages[1].group[1].share: 1 is too few"),
    ([("stages.1.group.1.share", 4)], "plan: stages[1].group: shares make 5 + 4 = 9"),
    ([("stages.2.group.1.share", 1)], "plan: stages[2].group: shares make 4 + 1 = 5"),
    ([("stages.1.group.0.sums", -1)], "plan: stages[1].group[0].sums: -1"),
    (
        [("stages.2.group.0.sums", 0), ("stages.2.group.1.sums", 0)],
        "plan: stages[2].group: nobody adds up",
    ),
    (
        [("stages.2.sharing", "samples"), ("stages.2.group.0.share", 6)],
        "plan: stages[2].sharing: block 10 (layers.10)",
    ),
    (
        [("stages.0.group", [member("desk", 4), member("pi2", 2)]), ("stages.2.group", [member("pi1", 6)])],
        "plan: stages[0].group: block 2 (layers.2)",
    ),
    ([("stages.1.codec", "haff")], "plan: stages[1].codec: 'haff' is not known here"),
    ([("stages.0.depth", 7)], "plan: stages[0].depth: 7 is outside"),
    ([("stages.2.depth", 0)], "plan: stages[2].depth: 0 is outside"),
    ([("schedule", "gpipe")], "plan: schedule: 'gpipe' is not known here"),
    ([("stages.1.depth", 3)], "plan: stages[1]: 13100 bytes too many for 'nano1'"),
]

UNREADABLE: list[tuple[str | bytes, str]] = [
    (EXAMPLE.replace('"micro_batches": 6', '"micro_batches": NaN'), "micro_batches: line 4, column 20: not JSON"),
    (EXAMPLE[: EXAMPLE.index("[") + 1], "stages: line 5, column 14: the file ends too early"),
    (json.dumps(changed(("stages.1.shares", 3))), "stages[1].shares: unknown key"),
    (json.dumps(changed(("stages.0.group.0.share", ...))), "stages[0].group[0].share: missing"),
    (json.dumps(changed(("stages.2.depth", "1"))), "stages[2].depth: expected int | null, got str"),
    (json.dumps(changed(("stages.1.sharing", "rows"))), "stages[1].sharing: invalid enum value 'rows'"),
    (json.dumps(changed(("schedule", 1))), "schedule: expected str, got int"),
    (json.dumps(changed(("version", 2))), "version: invalid enum value 2"),
    (json.dumps(changed(("micro_batches", 10**30))), "micro_batches: more than 10000"),
    (EXAMPLE + " " * (1 << 20), "more than 1048576 bytes"),
]

ALSO_UNREADABLE: list[tuple[str | bytes, str]] = [
    ("", "plan: line 1, column 1: the file ends too early"),
    ("[]", "plan: expected object, got array; give an object"),
    ("{}", "micro_batch_size: missing; give a whole number of samples"),
    ("[" * 100_000, "plan: expected object"),
    (json.dumps(changed(("micro_batch_size", True))), "micro_batch_size: expected int, got bool"),
    (json.dumps(changed(("micro_batch_size", 2.5))), "micro_batch_size: expected int, got float"),
    (EXAMPLE.replace('"micro_batch_size": 8', '"micro_batch_size": 1e999'), "micro_batch_size: number out of range"),
    (EXAMPLE.replace('"depth": 4', '"depth": ' + "9" * 5000), "stages[0].depth: integer value out of range"),
    (json.dumps(changed(("micro_batch_size", 10**20))), "micro_batch_size: more than 1000000"),
    (json.dumps(changed(("micro_batch_size", 0))), "micro_batch_size 0; give at least 1"),
    (json.dumps(changed(("micro_batches", -1))), "micro_batches -1; give at least 1"),
    (json.dumps(changed(("stages", []))), "stages is empty; give at least one stage"),
    (json.dumps(changed(("stages", {}))), "stages: expected array, got object"),
    (json.dumps(changed(("stages.0.blocks", [0]))), "stages[0].blocks: expected array of length 2"),
    (json.dumps(changed(("stages.0.blocks.1", "x"))), "stages[0].blocks[1]: expected int, got str; give [first, end]"),
    (json.dumps(changed(("stages.0.group.0.x\ny\x1b", 1))), r"stages[0].group[0].x\ny\x1b: unknown key"),
    (
        json.dumps(changed(("a - at `$`", 1))),
        "a - at `$`: unknown key; remove it, or use one of micro_",
    ),
    (EXAMPLE.replace('"version"', '"x - at `$.y"'), "y: object contains unknown field x; give an object"),
    (EXAMPLE.encode().replace(b"desk", b"d\xffsk"), "text that is not UTF-8"),
]


def test_example_of_the_docs_is_valid_and_does_what_they_say() -> None:
    plan = msgspec.json.decode(EXAMPLE, type=Plan)
    validate(plan, MODEL, FLEET)
    assert "`" + " ".join(turns(plan.stages[2], 6)) + "`" in " ".join(DOCS.split())


def test_a_plan_that_names_no_schedule_is_1f1b_and_its_name_comes_back() -> None:
    plan = msgspec.json.decode(EXAMPLE, type=Plan)
    assert "schedule" not in json.loads(EXAMPLE)
    assert plan.schedule == "1f1b"
    other = msgspec.structs.replace(plan, schedule="fill-drain")
    assert msgspec.json.decode(msgspec.json.encode(other), type=Plan) == other != plan
    assert len({plan, other, msgspec.structs.replace(other, schedule="1f1b")}) == 2


@pytest.mark.parametrize(("changes", "begins"), UNFIT, ids=[begins[6:40] for _, begins in UNFIT])
def test_unfit_plan_is_refused_as_the_docs_say(changes: list[tuple[str, object]], begins: str) -> None:
    plan = msgspec.convert(changed(*changes), Plan)
    with pytest.raises(PlanError) as refused:
        validate(plan, MODEL, FLEET)
    assert str(refused.value).startswith(begins)
    assert str(refused.value) in PROMISED


@pytest.mark.parametrize(
    ("text", "message", "documented"),
    [(*case, True) for case in UNREADABLE] + [(*case, False) for case in ALSO_UNREADABLE],
    ids=[begins[:40] for _, begins in UNREADABLE + ALSO_UNREADABLE],
)
def test_unreadable_plan_names_file_field_and_fix_on_one_line(
    tmp_path: Path, text: str | bytes, message: str, documented: bool
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError) as refused:
        read_plan(path)
    said = str(refused.value)
    assert said.startswith(f"{path}: {message}")
    assert said.isprintable()
    assert "; " in said, "what to do?"
    assert len(said) < 400
    if documented:
        assert said.replace(str(path), "plan.json") in PROMISED


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(PlanError, match=f"{re.escape(str(path))}: {why}.*; give the path"):
            read_plan(path)


def test_plan_read_from_a_file_is_the_plan_written(tmp_path: Path) -> None:
    plan = msgspec.json.decode(EXAMPLE, type=Plan)
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    assert read_plan(tmp_path / "plan.json") == plan


def test_every_promised_message_is_tested() -> None:
    tested = {begins for _, begins in UNFIT} | {f"plan.json: {begins}" for _, begins in UNREADABLE}
    elsewhere = ("plan.json: No such file", "plan: stages[1].depth: 5 makes the pipeline deadlock")
    assert len(PROMISED) == len(tested) + len(elsewhere)
    assert [m for m in PROMISED if not m.startswith((*tested, *elsewhere))] == []


def test_all_forwards_first_is_a_plan_and_one_forward_more_is_not() -> None:
    devices = fleet("d0", "d1", "d2")
    validate(chain(3, depths=[8, 8, 8], micro_batches=8), facts(3), devices)
    with pytest.raises(PlanError, match=r"stages\[0\].depth: 9 is outside .* give 3 to 8"):
        validate(chain(3, depths=[9, 8, 8], micro_batches=8), facts(3), devices)


def test_depth_above_the_stage_before_is_refused_as_the_docs_say() -> None:
    with pytest.raises(PlanError) as refused:
        validate(chain(4, depths=[None, 5, None, None]), facts(4), fleet("d0", "d1", "d2", "d3"))
    assert str(refused.value) in PROMISED


def test_coupled_stage_may_be_shared_by_samples_when_that_is_allowed() -> None:
    plan = msgspec.convert(changed(("stages.2.sharing", "samples"), ("stages.2.group.0.share", 6)), Plan)
    validate(plan, MODEL, FLEET, batchnorm="local")


def test_single_device_may_use_either_sharing_and_hold_any_block() -> None:
    samples = [("stages.0.sharing", "samples"), ("stages.0.group.0.share", 8)]
    validate(msgspec.convert(changed(*samples), Plan), MODEL, FLEET)
    one_row = chain(1)
    one_row = msgspec.structs.replace(one_row, micro_batch_size=1)
    validate(one_row, facts(1, coupled=(0,), exclusive=(0,)), fleet("d0"))


def test_advice_against_too_little_memory_fits_the_stage() -> None:
    with pytest.raises(PlanError, match=r"of them weights; move blocks to another stage or use a device with more"):
        validate(
            msgspec.convert(changed(), Plan),
            facts(12, weight_bytes=10**6, optimizer_slots=0, frozen=range(12)),
            fleet("nano1", "nano2", "pi1", "pi2", desk=10**6),
        )
    with pytest.raises(
        PlanError, match=r"of them activations; lower its depth to 3, use a smaller micro_batch_size or"
    ):
        validate(chain(3, depths=[5, 3, 1]), facts(3), fleet("d1", "d2", d0=1000))
