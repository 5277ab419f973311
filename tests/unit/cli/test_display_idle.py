"""Devices that the plan does without, as the displays show them."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from potluck.cli.display.idle_line import idle_text
from potluck.cli.display.lines import LineDisplay
from potluck.cli.display.live import LiveDisplay
from potluck.metrics.records import IdleDevices, PlanAdopted, Record, RunStarted
from potluck.metrics.run_view import RunView
from potluck.simulate.small_model import even
from potluck.types import IdleReason

WORSE = "a device of the plan is lost, leaves or slows down"
LITTLE = IdleReason(why="it would gain less than 1%", until=WORSE)
STARTED = RunStarted(
    round=0, rounds=9, samples=9, batch_size=9, micro_batch_size=9, seed=0, program="", devices=("a", "b")
)
ADOPTED = PlanAdopted(term=1, round=0, plan=even(["a", "b"], 2), reason="given", at_s=0.0)
PI = IdleDevices(term=1, round=0, idle={"pi": LITTLE}, at_s=0.0)
LINE = f"pi: it would gain less than 1%; takes part when {WORSE}"


def slower(percent: float) -> IdleReason:
    return IdleReason(why=f"with it the best plan found takes {percent:.1%} longer", until=WORSE)


def test_one_device_is_said_in_full():
    assert idle_text({"pi": LITTLE}) == LINE
    assert idle_text({"pi": LITTLE, "old": LITTLE}).startswith("pi, old: it would gain less than 1%; take part when")


def test_forty_devices_with_a_figure_each_are_one_line():
    idle = {f"pi{number}": slower(number / 1000) for number in (12, 2, *range(3, 41))}
    text = idle_text(idle)
    assert text == (
        f"pi12, pi2 and 37 more: with it the best plan found takes 0.2% to 4.0% longer; take part when {WORSE}"
    )


def test_the_reason_that_most_have_is_said_first_with_their_names_and_others_are_counted():
    few, many = {f"few{n}": LITTLE for n in range(8)}, {f"many{n}": slower(0.05) for n in range(30)}
    assert idle_text({**few, **many}) == (
        "many0, many1 and 36 more: with it the best plan found takes 5.0% longer, and 8 for other reasons; "
        f"take part when {WORSE}"
    )


def test_figures_in_names_are_no_figures_of_a_reason():
    apart = {d: IdleReason(why=f"it and {d}0 do not reach each other", until="it joins again") for d in ("pi1", "pi2")}
    assert idle_text(apart).startswith("pi1, pi2: it and pi10 do not reach each other, and 1 for other reasons; ")


def test_the_next_plan_says_anew_who_is_idle():
    view = RunView()
    for record, idle in ((ADOPTED, []), (PI, ["pi"]), (ADOPTED, []), (PI, ["pi"]), (replace(PI, idle={}), [])):
        view.see(record, 0.0)
        assert list(view.idle) == idle


def lines(*records: Record) -> list[str]:
    stream = io.StringIO()
    display = LineDisplay(stream)
    for record in records:
        display.record(record)
    return stream.getvalue().splitlines()


def test_lines_say_who_is_idle_and_again_only_what_is_new():
    both = replace(PI, idle={"pi": LITTLE, "old": LITTLE})
    said = lines(STARTED, ADOPTED, PI, ADOPTED, PI, both, replace(PI, idle={}), PI)
    assert said == [f"idle: {LINE}", f"idle: {idle_text(both.idle)}", f"idle: {LINE}"]


def test_whoever_looks_later_is_told_once():
    stream = io.StringIO()
    display = LineDisplay(stream)
    display.catch_up([(record, 0.0) for record in (STARTED, ADOPTED, PI)])
    assert stream.getvalue().splitlines() == [f"idle: {LINE}"]
    display.record(PI)
    assert stream.getvalue().splitlines() == [f"idle: {LINE}"]


@pytest.mark.parametrize("width", [60, 100])
def test_the_live_picture_shows_the_reason_and_what_would_change_it_whatever_the_width(width):
    console = Console(file=io.StringIO(), width=width, height=30, force_terminal=True, color_system=None)
    display = LiveDisplay(console, "potluck train job.py", "reading")
    for record in (STARTED, ADOPTED, replace(PI, idle={f"pi{number}": slower(0.01) for number in range(40)})):
        display.record(record)
    with console.capture() as capture:
        console.print(display)
    shown = capture.get().splitlines()
    assert all(len(line) <= width for line in shown)
    words = " ".join(" ".join(shown).split())
    assert f"idle pi0, pi1 and 38 more: with it the best plan found takes 1.0% longer; take part when {WORSE}" in words
