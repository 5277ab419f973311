"""What a run has come to, from its folder: whatever its process was doing when somebody looks."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import psutil
import pytest

from potluck.cli.verbs.attach import exit_code
from potluck.cli.verbs.detached import arguments_of
from potluck.cli.verbs.status import as_object, status_lines
from potluck.cli.verbs.stop import command_to_go_on
from potluck.commands import which_run
from potluck.commands.run_log import LOG, complaint, last_line
from potluck.commands.run_state import Followed, look, over
from potluck.coordinator.run_folder.process_record import PROCESS, facts_of
from potluck.metrics.records import (
    RECORDS,
    CheckpointRecord,
    EvaluationRecord,
    IdleDevices,
    IncidentRecord,
    PlanAdopted,
    Record,
    RunEnded,
    RunStarted,
    encode,
)
from potluck.types import IdleReason, Member, Plan, RoundRecord, Stage

PLAN = Plan(micro_batch_size=5, micro_batches=2, stages=(Stage(blocks=(0, 4), group=(Member(device="pi", share=2),)),))
STARTED = RunStarted(
    round=0, rounds=20, samples=100, batch_size=10, micro_batch_size=5, seed=0, program="", devices=("pi",)
)
ADOPTED = PlanAdopted(term=1, round=0, plan=PLAN, reason="found among 12", at_s=0.0)
JUDGED = EvaluationRecord(
    round=4, epoch=0, samples=9, loss=0.5, metrics={"accuracy": 0.75}, best=True, seconds=0.1, at_s=4.0
)
SAVED = CheckpointRecord(round=4, bytes=2000, seconds=0.1, at_s=4.0)
ROUNDS: list[Record] = [
    RoundRecord(round=n, epoch=0, term=1, samples=10, loss=1.0, learning_rate=0.1, seconds=1.0) for n in range(4)
]
TRAINED: list[Record] = [STARTED, ADOPTED, *ROUNDS, SAVED, JUDGED]


def _ended(reason: str, message: str = "") -> RunEnded:
    return msgspec.convert(
        {"type": "run_ended", "round": 4, "reason": reason, "message": message, "seconds": 5.0, "at_s": 5.0}, RunEnded
    )


def _write(folder: Path, *records: Record) -> None:
    with (folder / RECORDS).open("ab") as file:
        for record in records:
            file.write(encode(record) + b"\n")


def _name(folder: Path, *, living: bool, records_before: int = 0) -> None:
    """Names a process of the run: this one, or one that had its number long ago."""
    facts = facts_of(psutil.Process(), records_before)
    started_s = facts.started_s if living else facts.started_s - 100.0
    named = msgspec.structs.replace(facts, started_s=started_s, address="127.0.0.1:7117")
    (folder / PROCESS).write_bytes(msgspec.json.encode(named))


def test_while_its_process_lives_it_starts_trains_and_ends(tmp_path: Path) -> None:
    _name(tmp_path, living=True)
    (tmp_path / LOG).write_text("tracing the model\nwaiting for 2 devices\n")
    found = look(tmp_path)
    assert (found.state, found.message, found.process) == ("starting", "waiting for 2 devices", os.getpid())
    _write(tmp_path, *TRAINED)
    assert look(tmp_path).state == "running"
    _write(tmp_path, _ended("finished"))
    assert look(tmp_path).state == "ending"
    (tmp_path / PROCESS).unlink()
    assert look(tmp_path).state == "finished"


@pytest.mark.parametrize(("reason", "code"), [("finished", 0), ("stopped", 0), ("early", 0), ("failed", 3)])
def test_a_run_that_is_over_says_how_it_ended(tmp_path: Path, reason: str, code: int) -> None:
    _write(tmp_path, *TRAINED, _ended(reason, "a loss is NaN"))
    found = look(tmp_path)
    assert (found.state, found.process, found.seconds, found.message) == (reason, None, 5.0, "a loss is NaN")
    assert exit_code(found) == code


@pytest.mark.parametrize("named", [True, False])
def test_a_run_whose_process_is_gone_without_a_word_was_interrupted(tmp_path: Path, named: bool) -> None:
    _write(tmp_path, *TRAINED)
    if named:
        _name(tmp_path, living=False)
    found = look(tmp_path)
    assert (found.state, found.process, exit_code(found)) == ("interrupted", None, 1)
    assert f"--resume --run-dir {tmp_path}" in status_lines(found)[-1]


def test_before_the_first_checkpoint_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    _write(tmp_path, STARTED, ADOPTED, *ROUNDS)
    assert "no checkpoint yet" in status_lines(look(tmp_path))[-1]


def test_a_run_that_is_resumed_starts_again_whatever_its_last_end_was(tmp_path: Path) -> None:
    before = [*TRAINED, _ended("stopped")]
    _write(tmp_path, *before)
    _name(tmp_path, living=True, records_before=len(before))
    assert look(tmp_path).state == "starting"
    _write(tmp_path, msgspec.structs.replace(STARTED, round=4))
    found = look(tmp_path)
    assert (found.state, found.records.view.done) == ("running", 4)
    _name(tmp_path, living=False, records_before=len(before))
    assert look(tmp_path).state == "interrupted"
    _write(tmp_path, _ended("finished"))
    assert look(tmp_path).state == "finished"


def test_a_resumed_run_that_vanished_before_it_trained_was_interrupted(tmp_path: Path) -> None:
    before = [*TRAINED, _ended("stopped")]
    _write(tmp_path, *before)
    _name(tmp_path, living=False, records_before=len(before))
    assert look(tmp_path).state == "interrupted"


def test_one_that_failed_before_it_trained_has_its_last_words_in_the_log(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text('waiting for 2 devices\npotluck: pi is gone; see to it\n{"error": "pi"}\n')
    found = look(tmp_path)
    assert (found.state, found.message, exit_code(found)) == ("failed", "pi is gone; see to it", 3)
    (tmp_path / LOG).write_text("waiting for 2 devices\npotluck: interrupted\n")
    found = look(tmp_path)
    assert (found.state, found.message) == ("interrupted", "")
    assert status_lines(found)[-1] == "go on      nothing was trained: start again"


def test_one_that_failed_before_it_trained_and_wrote_so_has_failed(tmp_path: Path) -> None:
    _write(tmp_path, _ended("failed", "a: its labels do not fit"))
    found = look(tmp_path)
    assert (found.state, found.message) == ("failed", "a: its labels do not fit")


def test_one_that_failed_without_a_record_of_its_end_failed_for_whoever_looked_on_too(tmp_path: Path) -> None:
    _write(tmp_path, *TRAINED)
    (tmp_path / LOG).write_text("potluck: unexpected ZeroDivisionError\n")
    looking = Followed(tmp_path)
    looking.more()
    for found in (look(tmp_path), over(tmp_path, looking, facts_of(psutil.Process(), 0))):
        assert (found.state, found.message) == ("failed", "unexpected ZeroDivisionError")


def test_words_of_an_earlier_run_are_not_taken_for_its_own(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("potluck: pi is gone; see to it\n")
    _write(tmp_path, *TRAINED)
    os.utime(tmp_path / LOG, (1.0, 1.0))
    found = look(tmp_path)
    assert (found.state, found.message) == ("interrupted", "")


def test_only_whole_lines_count(tmp_path: Path) -> None:
    _write(tmp_path, *TRAINED)
    line = encode(_ended("finished"))
    with (tmp_path / RECORDS).open("ab") as file:
        file.write(line[:20])
        file.flush()
        found = look(tmp_path)
        assert found.state == "interrupted"
        file.write(line[20:] + b"\n")
    assert [type(record) for record, _ in found.records.more()] == [RunEnded]
    assert look(tmp_path).state == "finished"


def test_one_screen_has_everything(tmp_path: Path) -> None:
    trouble = [
        IncidentRecord(kind="lost", round=n, device="nano", what=f"nano{n} is lost", action="pi takes over", at_s=4.5)
        for n in range(6)
    ]
    _write(tmp_path, *TRAINED, *trouble)
    _name(tmp_path, living=True)
    found = look(tmp_path)
    lines = status_lines(found, [found])
    assert lines[0].startswith(f"{tmp_path}: running for ")
    assert f"(process {os.getpid()})" in lines[0]
    text = "\n".join(lines)
    for words in (
        "round      4/20 · epoch 1/2 · loss 1.0000 · 10 samples/s · 18 s left",
        "plan       found among 12",
        "pi         stage 1 of 1 · blocks 0-3",
        "evaluation accuracy 0.75 · loss 0.5 · best so far, after round 4",
        "checkpoint after round 4, 2.0 kB",
        "incidents  6 (the last 4 of 6)",
        "           round 5: nano5 is lost; pi takes over",
        "address    127.0.0.1:7117, where devices join",
        f"also running\n  {tmp_path}: running, round 4/20",
    ):
        assert words in text
    assert "nano1" not in text
    assert "go on" not in text


def test_an_object_has_it_too(tmp_path: Path) -> None:
    _write(tmp_path, *TRAINED, _ended("stopped"))
    found = as_object(look(tmp_path))
    assert (found["state"], found["rounds_done"], found["rounds"], found["loss"]) == ("stopped", 4, 20, 1.0)
    assert found["evaluation"] == {"accuracy": 0.75, "loss": 0.5, "round": 4, "best": True}
    assert (found["samples_per_s"], found["seconds"], found["seconds_left"]) == (10.0, 5.0, None)
    assert found["devices"] == {"pi": "stage 1 of 1 · blocks 0-3"}
    assert (found["process"], found["address"], found["checkpoint"]) == (None, None, 4)
    assert msgspec.json.decode(msgspec.json.encode(found)) == found


def test_the_newest_run_is_the_one_that_began_last_however_long_others_write(tmp_path: Path) -> None:
    for number, name in enumerate(("older", "newer", "log only")):
        folder = tmp_path / name
        folder.mkdir()
        if name == "log only":
            (folder / LOG).write_text("")
            os.utime(folder, (50.0, 50.0))
            continue
        _write(folder, *TRAINED)
        (folder / "run.json").write_text("{}")
        os.utime(folder / "run.json", (100.0 + number, 100.0 + number))
    (tmp_path / "no run").mkdir()
    assert [path.name for path in which_run.runs(tmp_path)] == ["newer", "older", "log only"]
    assert which_run.running(tmp_path) == []
    _name(tmp_path / "older", living=True)
    assert [path.name for path in which_run.runs(tmp_path)] == ["older", "newer", "log only"]
    assert [path.name for path in which_run.running(tmp_path)] == ["older"]


def test_of_a_log_only_what_was_said_since_counts(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("potluck: no such file\n\nround 3/20\n")
    assert (last_line(tmp_path), complaint(tmp_path)) == ("round 3/20", "no such file")
    assert (last_line(tmp_path, 23), complaint(tmp_path, 23)) == ("round 3/20", "")
    assert last_line(tmp_path / "nowhere") == ""


def test_the_same_training_is_started_by_the_same_flags() -> None:
    flags = {"local": "1,0.5", "no_local": None, "json": True, "run_dir": "old", "plan_seconds": "1s"}
    assert arguments_of("my job.py", flags, Path("c.toml"), resume=True) == [
        "train", "my job.py", "--local=1,0.5", "--json", "--plan-seconds=1s", "--config=c.toml", "--resume",
    ]  # fmt: skip
    assert arguments_of("j.py", {"local": None}, None, resume=False) == ["train", "j.py"]


def test_the_command_to_go_on_is_the_one_that_was_given() -> None:
    given = ["python", "-m", "potluck", "train", "j.py", "--local=1,1", "--run-dir=old"]
    assert command_to_go_on(given, Path("old")) == "potluck train j.py --local=1,1 --resume --run-dir old"
    assert command_to_go_on(["/usr/bin/python", "/bin/potluck", "demo"], Path("old")) is None
    assert command_to_go_on([], Path("old")) is None


def test_who_is_idle_is_shown_with_the_reason(tmp_path: Path) -> None:
    reason = IdleReason(why="it would gain less than 1%", until="pi is lost")
    _write(tmp_path, STARTED, ADOPTED)
    assert as_object(look(tmp_path))["idle"] == {}
    assert not any(line.startswith("idle") for line in status_lines(look(tmp_path)))
    _write(tmp_path, IdleDevices(term=1, round=0, idle={f"old{n}": reason for n in range(40)}, at_s=0.0))
    found = as_object(look(tmp_path))
    assert found["idle"]["old39"] == {"why": "it would gain less than 1%", "until": "pi is lost"}
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    text = "idle       old0, old1 and 38 more: it would gain less than 1%; take part when pi is lost"
    assert text in status_lines(look(tmp_path))
