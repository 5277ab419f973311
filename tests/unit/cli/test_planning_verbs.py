"""`potluck plan` and `potluck simulate` on a saved profile: no device is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from potluck.cli.main import main
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.job.job import load_job
from potluck.plan.baselines import PLANNERS
from potluck.plan.validate import read_plan
from potluck.profile.store import save
from potluck.types import Profile
from tests.unit.plan.instances import a_profile

JOB = """
import potluck, torch
from torch import nn
layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.ReLU())]
job = potluck.Job(
    model=lambda: nn.Sequential(*layers, nn.Linear(32, 2)), loss=nn.functional.cross_entropy, batch_size=32, epochs=1,
    optimizer=potluck.SGD(lr=0.1), data=(torch.zeros(64, 32), torch.zeros(64, dtype=torch.long)),
)
"""
FLEET = """
bandwidth = "100Mbit"
[[device]]
name = "desk"
memory = "8GB"
[[device]]
name = "pi"
speed = 0.5
memory = "1GB"
[[device]]
name = "old"
speed = 0.25
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job, a fleet and a profile of one device for them."""
    folder = tmp_path_factory.mktemp("planning")
    (folder / "job.py").write_text(JOB)
    (folder / "fleet.toml").write_text(FLEET)
    (folder / "tight.toml").write_text(
        FLEET.replace("8GB", "20kB").replace("1GB", "20kB").replace("0.25", '0.25\nmemory="20kB"')
    )
    facts = prepare_job(load_job(folder / "job.py")).facts
    profile: Profile = a_profile(0, facts, [1.0])
    save(profile, folder / "profile.json")
    return folder


@pytest.fixture(autouse=True)
def here(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved)
    monkeypatch.setenv("COLUMNS", "120")  # whatever terminal the tests are started from


def potluck(verb: str, *arguments: str, fleet: str = "fleet.toml") -> Result:
    settings = ["--fleet", fleet, "--load", "profile.json", "--plan-seconds", "0.5s"]
    return CliRunner().invoke(main, [verb, "job.py", *settings, *arguments])


def last_json(result: Result) -> dict:
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_a_plan_is_shown_with_bars_reasons_and_bound_and_can_be_read_back() -> None:
    result = potluck("plan", "--out", "plan.json", "--plan-seconds", "5s")  # a busy machine, too, finds a second one
    assert result.exit_code == 0, result.stderr
    for word in ("a round of 32 samples", "stage", "desk", "█", "bottleneck", "bound", "next best", "searched"):
        assert word in result.stdout
    assert read_plan(Path("plan.json")).batch_size == 32
    left_out = {"desk", "pi", "old"} - set(read_plan(Path("plan.json")).devices)
    assert all(f"left out    {device}: " in result.stdout for device in left_out)


def test_a_narrow_terminal_gets_no_bars_and_no_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = potluck("plan")
    assert result.exit_code == 0, result.stderr
    assert "█" not in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_a_plan_as_json_has_all_that_the_lines_have() -> None:
    found = last_json(potluck("plan", "--json"))
    assert found["planner"] == "potluck"
    assert found["fits"] is True
    assert 0 < found["bound_s"] <= found["round_s"] * 1.0001
    assert {d["device"] for d in found["devices"]} | set(found["idle"]) == {"desk", "pi", "old"}
    assert found["bottleneck"]


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_can_be_asked(planner: str) -> None:
    result = potluck("plan", "--planner", planner, "--json")
    assert result.exit_code == 0, result.stderr
    assert last_json(result)["planner"] == planner


def test_when_nothing_fits_the_bytes_and_the_ways_out_are_named() -> None:
    result = potluck("plan", fleet="tight.toml")
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("potluck: ")]
    assert "the best attempt lacks" in line
    assert "kB on" in line
    assert "give" in line


def test_a_planner_that_ignores_memory_is_shown_not_to_fit() -> None:
    result = potluck("plan", "--planner", "gpipe", fleet="tight.toml")
    assert result.exit_code == 1
    assert "too few" in result.stdout
    assert "DOES NOT FIT" in result.stdout


def test_a_simulation_shows_devices_and_draws_the_round() -> None:
    result = potluck("simulate", "--planner", "1f1b", "--gantt", "round.svg")
    assert result.exit_code == 0, result.stderr
    assert "▓" in result.stdout
    assert "samples/s" in result.stdout
    assert Path("round.svg").read_text().startswith("<svg")


def test_a_plan_from_a_file_is_simulated() -> None:
    assert potluck("plan", "--planner", "1f1b", "--out", "even.json").exit_code == 0
    given = last_json(potluck("simulate", "--plan", "even.json", "--json"))
    asked = last_json(potluck("simulate", "--planner", "1f1b", "--json"))
    assert given["round_s"] == asked["round_s"]
    Path("even.json").write_text(Path("even.json").read_text().replace("desk", "nobody"))
    refused = potluck("simulate", "--plan", "even.json")
    assert refused.exit_code == 2
    assert "'nobody' is not in the fleet" in refused.stderr


def test_planners_are_compared_side_by_side() -> None:
    result = potluck("simulate", "--compare", "--json")
    assert result.exit_code == 0, result.stderr
    found = last_json(result)
    assert set(found) == {"potluck", *PLANNERS}
    best = min(found[name]["round_s"] for name in PLANNERS)
    assert found["potluck"]["round_s"] <= best * 1.001
    assert "of the best" in potluck("simulate", "--compare").stdout


def test_the_best_plan_of_a_comparison_is_drawn() -> None:
    result = potluck("simulate", "--compare", "--gantt", "best.svg")
    assert result.exit_code == 0, result.stderr
    assert Path("best.svg").read_text().startswith("<svg")
    assert "drawn in    best.svg, the plan of " in result.stdout
    for word in ("micro-batches", "fits", "bound       no plan for these 3 devices", "of 3"):
        assert word in result.stdout


def test_a_given_plan_is_simulated_with_the_batch_size_asked_for() -> None:
    assert potluck("plan", "--planner", "1f1b", "--out", "even.json").exit_code == 0
    usual = last_json(potluck("simulate", "--plan", "even.json", "--json"))
    more = last_json(potluck("simulate", "--plan", "even.json", "--batch-size", "128", "--json"))
    assert more["plan"]["micro_batches"] == 4 * usual["plan"]["micro_batches"]
    assert more["round_s"] > 2 * usual["round_s"]
    assert more["without_change"]["round_s"] == usual["round_s"]
    refused = potluck("simulate", "--plan", "even.json", "--batch-size", "33")
    assert refused.exit_code == 2
    assert "--batch-size: 33 cannot be cut into the plan's micro-batches of" in refused.stderr


def test_turns_of_a_given_plan_grow_in_proportion_or_not_at_all() -> None:
    assert potluck("plan", "--planner", "data-parallel", "--out", "turns.json").exit_code == 0
    plan = read_plan(Path("turns.json"))
    twice = last_json(potluck("simulate", "--plan", "turns.json", "--batch-size", "64", "--json"))["plan"]
    shares = [m.share for m in plan.stages[0].group]
    assert [m["share"] for m in twice["stages"][0]["group"]] == [2 * share for share in shares]
    odd = plan.micro_batch_size * (plan.micro_batches + 1)
    refused = potluck("simulate", "--plan", "turns.json", "--batch-size", str(odd))
    assert refused.exit_code == 2
    assert "cannot be shared as the plan does" in refused.stderr


def test_a_change_is_shown_beside_what_was_before() -> None:
    asked = ("simulate", "--planner", "1f1b", "--slow", "old=3")
    before = last_json(potluck("simulate", "--planner", "1f1b", "--json"))
    both = last_json(potluck(*asked, "--json"))
    assert both["without_change"]["round_s"] == before["round_s"] < both["round_s"]
    shown = potluck(*asked).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("changed ")]
    assert "→" in line
    assert "slow" in line
    assert "without the change" in line
    assert "without_change" not in before


def test_what_if_changes_the_answer() -> None:
    def round_s(*arguments: str) -> float:
        result = potluck("simulate", "--planner", "data-parallel", "--json", *arguments)
        assert result.exit_code == 0, result.stderr
        return float(last_json(result)["round_s"])

    usual = round_s()
    assert round_s("--slow", "old=4") > usual
    assert round_s("--remove", "old") < usual
    assert round_s("--link", "all=1Mbit") > usual
    assert round_s("--link", "desk,pi=100kbit") > usual
    assert round_s("--batch-size", "64") > 1.5 * usual
    more = last_json(potluck("simulate", "--planner", "data-parallel", "--add", "new=1,4GB", "--json"))
    assert "new" in [d["device"] for d in more["devices"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--planner", "astroid"], "--planner: 'astroid' is not known; did you mean asteroid?"),
        (["--slow", "old"], "--slow: 'old' does not say what; give it like nano1=2"),
        (["--slow", "nobody=2"], "--slow: no device 'nobody'; it has desk, pi, old"),
        (["--slow", "old=much"], "--slow: 'much' is no number"),
        (["--remove", "nobody"], "--remove: no device 'nobody'"),
        (["--link", "desk=1Mbit"], "--link: 'desk=1Mbit' names one end"),
        (["--link", "desk,pi=1"], "--link: '1' has no unit"),
        (["--add", "desk=1"], "--add: 'desk' is already in the fleet"),
        (["--add", "new=fast"], "--add: 'fast' is no speed"),
        (["--add", "new=1,much"], "--add: 'much' is no size"),
        (["--batch-size", "33"], "--batch-size: 33 cannot be cut"),
        (["--batch-size", "8000000"], "--batch-size: 8000000 makes more than 10000 micro-batches"),
        (["--gantt", "round.png"], "--gantt: round.png is no .svg file"),
        (["--gantt", "folder.svg"], "--gantt: folder.svg cannot be written (Is a directory)"),
        (["--memory", "1MB"], "--load has its own devices and links; leave out --memory"),
        (["--compare", "--plan", "x.json"], "--compare asks every planner"),
        (["--plan", "nowhere.json"], "nowhere.json: No such file"),
        (["--local", "1,1"], "--fleet describes all devices"),
        (["--gantt", "nowhere/round.svg", "--planner", "single"], "--gantt: nowhere/round.svg cannot be written"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    Path("folder.svg").mkdir(exist_ok=True)
    result = potluck("simulate", *arguments)
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("potluck: ")]
    assert line.removeprefix("potluck: ").startswith(message)


def test_a_bad_fleet_file_is_refused_before_the_model_is_traced() -> None:
    Path("bad.toml").write_text("[[device]]\nname = 'a'\nmemory = 0\n")
    result = potluck("plan", fleet="bad.toml")
    assert result.exit_code == 2
    assert "bad.toml: device[0].memory: 0 is no memory at all" in result.stderr
    assert "tracing" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--slow", "nobody=2"], ["--add", "new=fast"], ["--link", "desk,nas=1Mbit"], ["--gantt", "nowhere/round.svg"]],
)
def test_bad_questions_are_refused_before_the_model_is_traced(arguments: list[str]) -> None:
    result = potluck("simulate", *arguments)
    assert result.exit_code == 2
    assert "tracing" not in result.stderr


@pytest.mark.parametrize("option", [["--compare"], ["--gantt", "x.svg"], ["--slow", "old=2"]])
def test_plan_points_to_simulate_for_what_it_does_not_do(option: list[str]) -> None:
    result = potluck("plan", *option)
    assert result.exit_code == 2
    assert f"{option[0]} belongs to potluck simulate" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--plan-seconds", "x"], ["--batch-size", "0"], ["--batch-size", "33"], ["--nothing"]]
)
def test_bad_input_is_also_an_object_if_json_is_asked_for(arguments: list[str]) -> None:
    result = potluck("simulate", "--json", *arguments)
    assert result.exit_code == 2
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["exit_code"] == 2
    assert json.loads(line)["error"]
