"""A device that the plan does without: shown as idle with the reason, told so on its own terminal, and used in need."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.cli.verbs.planners import plan_text
from potluck.commands.run_state import look
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.job.job import load_job
from potluck.metrics.records import RECORDS, IdleDevices, read
from potluck.plan.baselines import even_plan
from potluck.types import DeviceSpec
from tests.process.agents import free_port, until
from tests.process.command_line import DEADLINE_S, Potluck, wait_for_line

SLOWLY = "\nimport dataclasses, time\njob = dataclasses.replace(job, callbacks=[lambda record: time.sleep(0.05)])\n"
WHY = "the plan was given, so none with it is looked for"
UNTIL = "a device of the plan is lost or leaves"


@pytest.fixture
def potluck(tmp_path: Path) -> Iterator[Potluck]:
    with Potluck(tmp_path) as it:
        yield it


def _given_plan(potluck: Potluck, *names: str) -> tuple[str, str]:
    """The files of a job that is stopped long before its end, and of a plan for devices of these names."""
    path = potluck.folder / potluck.job(rounds=2_000)
    with path.open("a") as file:
        file.write(SLOWLY)
    prepared = prepare_job(load_job(str(path)))
    job, fleet = prepared.job, [DeviceSpec(name=name) for name in names]
    plan = even_plan(prepared.facts, fleet, job.micro_batch, job.batch_size // job.micro_batch)
    (potluck.folder / "plan.json").write_text(plan_text(plan))
    return path.name, "plan.json"


def _status(potluck: Potluck) -> dict[str, object]:
    code, out, err = potluck.run("status", "run", "--json")
    assert code == 0, err
    found: dict[str, object] = json.loads(out)
    return found


@pytest.mark.timeout(240)  # four processes that train, and some that look
def test_one_that_the_plan_leaves_out_is_idle_with_a_reason_until_another_is_lost(potluck: Potluck) -> None:
    job, plan = _given_plan(potluck, "desk", "nano")
    address, run = f"127.0.0.1:{free_port()}", potluck.folder / "run"
    train = potluck.start(
        "train", job, "--plan", plan, "--no-local", "--devices", "3", "--listen", address, "--run-dir", "run"
    )
    wait_for_line(train, "0 of 3 devices; waiting for 3 more, until ")
    joined: dict[str, subprocess.Popen[str]] = {}
    for count, name in enumerate(("desk", "nano", "spare"), start=1):  # one after the other: each is said
        joined[name] = potluck.start("join", address, "--name", name, "--threads", "1")
        wait_for_line(train, f"{count} of 3 devices: {', '.join(joined)}")

    [*_, said] = wait_for_line(joined["spare"], "potluck: idle: ")
    because = f"the plan does without this device, because {WHY}; it stays ready and takes part when {UNTIL}"
    assert said == f"potluck: idle: {because}\n"
    shown = wait_for_line(train, "idle: ")[-1]
    assert shown == f"idle: spare: {WHY}; takes part when {UNTIL}\n"
    until(lambda: bool(look(run).records.view.idle), "a record of who is idle", DEADLINE_S)
    found = _status(potluck)
    assert found["idle"] == {"spare": {"why": WHY, "until": UNTIL}}
    assert found["devices"].keys() == {"desk", "nano"}  # type: ignore[attr-defined]

    joined["nano"].kill()
    [takes_part] = wait_for_line(joined["spare"], "potluck: ")  # the next thing that it says
    assert takes_part.startswith("potluck: spare holds stage ")
    until(lambda: "spare" in look(run).records.view.lanes, "the next plan", DEADLINE_S)
    assert _status(potluck)["idle"] == {}
    code, _, err = potluck.run("stop", "run")
    assert code == 0, err
    train.communicate(timeout=DEADLINE_S)
    for process in joined.values():
        process.communicate(timeout=DEADLINE_S)
    idle = [record.idle for record in read(run / RECORDS) if isinstance(record, IdleDevices)]
    assert [list(some) for some in idle] == [["spare"]]
