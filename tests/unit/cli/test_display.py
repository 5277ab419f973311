"""What the displays show of a run."""

import io

import msgspec
import pytest
from rich.console import Console

from potluck.cli.display.lines import LineDisplay
from potluck.cli.display.live import LiveDisplay
from potluck.metrics.records import (
    CheckpointRecord,
    CopyRecord,
    EvaluationRecord,
    IncidentRecord,
    PlanAdopted,
    Record,
    RunEnded,
    RunStarted,
)
from potluck.metrics.run_view import RunView, sparkline
from potluck.metrics.tally import Tally
from potluck.types import Member, Plan, RoundRecord, Stage

PLAN = Plan(
    micro_batch_size=5,
    micro_batches=2,
    stages=(
        Stage(blocks=(0, 4), group=(Member(device="desk", share=2),)),
        Stage(blocks=(4, 5), group=(Member(device="pi1", share=1), Member(device="pi2", share=1))),
    ),
)
STARTED = RunStarted(
    round=0, rounds=20, samples=100, batch_size=10, micro_batch_size=5, seed=0, program="", devices=PLAN.devices
)
ADOPTED = PlanAdopted(term=1, round=0, plan=PLAN, reason="start", at_s=0.0)
EVALUATED = EvaluationRecord(
    round=10, epoch=0, samples=9, loss=0.5, metrics={"accuracy": 0.75}, best=True, seconds=0.1, at_s=1.0
)
TROUBLE = IncidentRecord(
    kind="not_finite", round=3, device=None, what="a loss is NaN", action="run once more", at_s=1.0
)


def _round(number: int, loss: float = 1.0) -> RoundRecord:
    return RoundRecord(round=number, epoch=number // 10, term=1, samples=10, loss=loss, learning_rate=0.1, seconds=0.5)


def _view(rounds: int) -> RunView:
    view = RunView()
    view.see(STARTED, 100.0)
    view.see(ADOPTED, 100.0)
    for number in range(rounds):
        view.see(_round(number), 100.0 + (number + 1) * 0.5)
    return view


def test_a_lane_moves_towards_what_its_device_computed_of_each_round():
    view = _view(0)
    computed = _round(0), _round(1), _round(2)
    for record, seconds in zip(computed, (1.0, 0.5, 0.0), strict=True):
        spent_s = {"desk": {"forward": seconds, "receive": 1.0 - seconds}}
        view.see(msgspec.structs.replace(record, spent_s=spent_s), 101.0 + record.round)
    assert view.lanes["desk"].busy == pytest.approx(0.8 * (0.8 * 1.0 + 0.2 * 0.5))
    assert view.lanes["pi1"].busy == 0.0


def test_rate_and_time_left_follow_from_when_rounds_came():
    view = _view(10)
    assert view.samples_per_s() == pytest.approx(20.0)
    assert view.seconds_left(105.0) == pytest.approx(5.0)
    assert (view.done, view.epochs) == (10, 2)


def test_nothing_is_guessed_before_there_is_anything_to_go_by():
    view = _view(0)
    assert view.samples_per_s() is None
    assert view.seconds_left(101.0) is None


def test_a_resumed_run_does_not_count_rounds_of_the_run_before():
    view = RunView()
    view.see(RunStarted(**{f: getattr(STARTED, f) for f in STARTED.__struct_fields__} | {"round": 10}), 0.0)
    for number in range(10, 15):
        view.see(_round(number), number - 9.0)
    assert view.seconds_left(5.0) == pytest.approx(5.0)


def test_a_run_that_goes_on_after_an_end_is_not_over_and_its_rate_is_its_own():
    view = _view(4)
    view.see(RunEnded(round=4, reason="stopped", message="", seconds=2.0, at_s=2.0), 102.0)
    assert not view.training
    view.see(msgspec.structs.replace(STARTED, round=4), 0.0)
    view.see(_round(4), 2.0)
    assert view.training
    assert view.samples_per_s() == pytest.approx(5.0)


def test_a_lane_says_what_its_device_holds():
    lanes = {name: lane.where for name, lane in _view(0).lanes.items()}
    assert lanes["desk"] == "stage 1 of 2 · blocks 0-3"
    assert lanes["pi1"] == "stage 2 of 2 · block 4 · 1 of 2 turns"


def test_a_sparkline_falls_with_the_values_and_keeps_its_width():
    line = sparkline([2.0**-i for i in range(100)], 10)
    assert len(line) == 10
    assert (line[0], line[-1]) == ("█", "▁")
    assert list(line) == sorted(line, reverse=True)
    assert sparkline([float("nan")], 10) == sparkline([], 10) == ""


def test_lines_say_every_epoch_evaluation_and_incident():
    stream = io.StringIO()
    display = LineDisplay(stream)
    display.judged_by("accuracy")
    records: list[Record] = [STARTED, ADOPTED, *(_round(n) for n in range(20)), EVALUATED, TROUBLE]
    for record in records:
        display.record(record)
    text = stream.getvalue()
    assert "round 10/20 · epoch 1/2 · loss 1.0000" in text
    assert "round 20/20 · epoch 2/2" in text
    assert "after round 10: accuracy 0.75 · loss 0.5 · best accuracy so far" in text
    assert "a loss is NaN; run once more" in text
    assert len(text.splitlines()) < 10  # rounds come faster than anybody reads


def test_what_happened_before_anybody_looked_is_a_few_lines_and_what_comes_then_is_news():
    stream = io.StringIO()
    display = LineDisplay(stream)
    past: list[Record] = [STARTED, msgspec.structs.replace(ADOPTED, reason="found among 12")]
    past += [*(_round(n) for n in range(12)), EVALUATED, TROUBLE]
    display.catch_up([(record, 100.0 + index) for index, record in enumerate(past)])
    plan, *lanes, trouble, evaluated, progress = stream.getvalue().splitlines()
    assert (plan, len(lanes)) == ("plan found among 12", 3)
    assert trouble.startswith("round 3: a loss is NaN")
    assert evaluated.startswith("after round 10: accuracy 0.75")
    assert progress.startswith("round 12/20 · epoch 2/2 · loss 1.0000 · 9 samples/s · 10 s left")
    display.record(_round(12), 200.0)
    assert stream.getvalue().splitlines()[-1].startswith("round 13/20")


def test_of_a_run_that_is_over_nothing_is_left_to_wait_for():
    stream = io.StringIO()
    ended = RunEnded(round=12, reason="stopped", message="", seconds=2.0, at_s=2.0)
    past: list[Record] = [STARTED, *(_round(n) for n in range(12)), ended]
    LineDisplay(stream).catch_up([(record, 100.0 + index) for index, record in enumerate(past)])
    assert " left" not in stream.getvalue()


def test_copies_and_when_the_next_is_made_are_shown():
    view = RunView()
    view.see(CopyRecord(round=12, seconds=7.2, period_s=29.1, at_s=20.0), 20.0)
    assert view.copy == "of round 12 on a second device, after 7 s; again 29 s later"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_live_picture_fits_and_shows_every_device(width):
    console = Console(file=io.StringIO(), width=width, height=30, force_terminal=True, color_system=None)
    display = LiveDisplay(console, "potluck train job.py", "reading")
    saved = CheckpointRecord(round=10, bytes=2000, seconds=0.1, at_s=1.0)
    records: list[Record] = [STARTED, ADOPTED, *(_round(n) for n in range(12)), EVALUATED, TROUBLE, saved]
    for record in records:
        display.record(record)
    spent_s = {
        "desk": {"forward": 0.9, "receive": 0.1},
        "pi1": {"backward": 0.4, "verdict": 0.6},
        "pi2": {"reduce": 1.0},
    }
    display.record(msgspec.structs.replace(_round(12), spent_s=spent_s))
    with console.capture() as capture:
        console.print(display)
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    picture = "\n".join(lines)
    for name in ("desk", "pi1", "pi2", "round", "accuracy 0.75"):
        assert name in picture
    if width >= 80:
        assert "epoch 2/2" in picture
        assert "a loss is NaN; run once more" in picture


def test_a_plan_that_was_found_is_shown_as_lines_and_one_that_was_given_is_not():
    def shown(reason: str) -> list[str]:
        stream = io.StringIO()
        LineDisplay(stream).record(msgspec.structs.replace(ADOPTED, reason=reason))
        return stream.getvalue().splitlines()

    first, *devices = shown("found among 12: 3.5 ms a round")
    assert first == "plan found among 12: 3.5 ms a round"
    assert devices[0] == "  desk: stage 1 of 2 · blocks 0-3"
    assert devices[1] == "  pi1: stage 2 of 2 · block 4 · 1 of 2 turns"
    assert shown("given") == []


def test_how_far_devices_are_is_one_line_for_all():
    said: list[str] = []
    tally = Tally(said.append, every_s=0.0)
    tally("desk", 1, 9)
    tally("pi", 2, 9)
    assert said[-1] == "measuring: desk 1/9 · pi 2/9"
    seldom = Tally(said.append, every_s=1e9)
    seldom("desk", 3, 9)
    assert len(said) == 2
