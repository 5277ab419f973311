"""Whether a run in a folder can go on with a job is found out before any device is asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import potluck
from potluck.control.ledger import RunFacts, entry
from potluck.coordinator.run_folder.folder import check_resumable
from potluck.coordinator.run_folder.folder_names import MODEL
from potluck.coordinator.run_folder.ledger_file import LEDGER, Ledger, write_facts
from potluck.coordinator.run_folder.term_log import TERMS, Term, TermLog
from potluck.errors import InputError
from potluck.metrics.records import RECORDS, RecordLog, RunEnded
from potluck.tensors.checkpoint import Position, write

ROUNDS = 4
JOB = potluck.Job(
    model=nn.Linear(4, 2), loss=F.cross_entropy, optimizer=potluck.SGD(lr=0.1),
    data=(torch.zeros(16, 4), torch.zeros(16).long()), batch_size=8, epochs=2, seed=5,
)  # fmt: skip


def run(path: Path, *, trained: int = ROUNDS, ended: Literal["finished", "stopped", "failed"] = "finished") -> Path:
    ledger = Ledger(path / LEDGER)
    for round in range(trained):
        ledger.append(entry(round=round, epoch=round // 2, term=1, ids=range(8), loss=1.0, digest="0" * 32))
    ledger.close()
    write_facts(path, RunFacts(samples=16, batch_size=8, epochs=2, rounds=None, seed=5))
    where = Position(
        round=trained, epoch=trained // 2, index_in_epoch=0, seed=5, sample_count=16, batch_size=8, program="abc"
    )
    write(path, where, {"w": torch.zeros(1)}, {})
    log = RecordLog(path / RECORDS)
    log.append(RunEnded(round=trained, reason=ended, message="", seconds=1.0, at_s=1.0))
    log.close()
    (path / MODEL).write_bytes(b"")
    return path


def check(path: Path, digest: str = "abc", **changes: Any) -> None:
    check_resumable(path, digest, "", dataclasses.replace(JOB, **changes))


@pytest.mark.parametrize(
    ("changes", "more"), [({}, "epochs=2"), ({"epochs": None, "rounds": 4}, "rounds=4"), ({"epochs": 1}, "")]
)
def test_a_finished_run_is_not_trained_again(tmp_path: Path, changes: dict[str, Any], more: str) -> None:
    with pytest.raises(InputError) as caught:
        check(run(tmp_path), **changes)
    said = str(caught.value)
    assert "give it more rounds" in said if not more else f"give the job more than {more}" in said
    assert not more or f"{tmp_path} is finished, after 4 rounds; its model is {tmp_path / MODEL}" in said
    assert "\n" not in said


def test_a_finished_run_goes_on_where_the_job_asks_for_more(tmp_path: Path) -> None:
    check(run(tmp_path), epochs=3)
    check(tmp_path, epochs=None, rounds=5)


def test_what_was_stopped_failed_or_has_no_model_yet_goes_on(tmp_path: Path) -> None:
    for ended, trained in (("stopped", 2), ("failed", ROUNDS)):
        (tmp_path / ended).mkdir()
        check(run(tmp_path / ended, trained=trained, ended=ended))  # type: ignore[arg-type]
    (tmp_path / "unsaved").mkdir()
    (run(tmp_path / "unsaved") / MODEL).unlink()
    check(tmp_path / "unsaved")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"digest": "def"}, r"made with model \(digest\) abc, the job now has def"),
        ({"seed": 6}, "made with seed 5, the job now has 6"),
        ({"batch_size": 4}, "made with batch_size 8, the job now has 4"),
        ({"staleness": 1}, "made with staleness 0, the job now has 1"),
    ],
)
def test_another_job_is_told_what_differs_and_what_to_do(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"{words}; give --resume the job it was made with, or .* another --run-dir"):
        check(run(tmp_path), **changes)


def test_a_run_that_ended_without_a_checkpoint_waits_for_nobody(tmp_path: Path) -> None:
    run(tmp_path)
    for path in sorted((tmp_path / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    stage = potluck.Stage(blocks=(0, 1), group=(potluck.Member(device="a", share=2),), sharing="turns")
    plan = potluck.Plan(micro_batch_size=4, micro_batches=2, stages=(stage,))
    TermLog(tmp_path / TERMS).append(Term(term=1, round=0, plan=plan))
    with pytest.raises(InputError, match="no checkpoint to resume from; start a new run in another --run-dir"):
        check(tmp_path)
