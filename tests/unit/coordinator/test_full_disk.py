"""A disk without room: one line that says what to do, and nothing half written."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from potluck.control.ledger import entry
from potluck.coordinator.run_folder.folder import save_model
from potluck.coordinator.run_folder.ledger_file import LEDGER, Ledger
from potluck.errors import PotluckError
from potluck.metrics.records import RECORDS, CheckpointRecord, RecordLog, read
from potluck.tensors import checkpoint

ROOM_BYTES = 1000


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Within, no file of this process may grow beyond `ROOM_BYTES`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def record(round: int) -> CheckpointRecord:
    return CheckpointRecord(round=round, bytes=1, seconds=0.0, at_s=0.0)


def append_many(log: RecordLog) -> None:
    for round in range(100):
        log.append(record(round))


def commit_many(ledger: Ledger) -> None:
    for round in range(100):
        ledger.append(entry(round=round, epoch=0, term=1, ids=range(4), loss=1.0, digest="0" * 32))


def test_a_record_that_finds_no_room_leaves_the_others_and_can_be_written_later(tmp_path: Path) -> None:
    path = tmp_path / RECORDS
    log = RecordLog(path)
    with no_room(), pytest.raises(PotluckError, match=r"records\.jsonl: cannot be written.*free some space.*--resume"):
        append_many(log)
    written = len(path.read_bytes().splitlines())
    assert 0 < written < 100
    assert path.read_bytes().endswith(b"\n")
    log.append(record(1000))
    log.close()
    assert [r.round for r in read(path)] == [*range(written), 1000]


def test_closing_on_a_full_disk_does_not_fail_again(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / RECORDS)
    with no_room():
        with contextlib.suppress(PotluckError):
            append_many(log)
        log.close()


def test_a_ledger_without_room_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER)
    with no_room(), pytest.raises(PotluckError, match=r"ledger\.jsonl: cannot be written.*free some space.*resume"):
        commit_many(ledger)
    kept = ledger.rounds
    assert 0 < kept < 100
    ledger.close()
    again = Ledger(tmp_path / LEDGER)
    assert again.rounds == kept
    again.close()


def test_a_checkpoint_without_room_is_not_there(tmp_path: Path) -> None:
    position = checkpoint.Position(
        round=1, epoch=0, index_in_epoch=0, seed=0, sample_count=4, batch_size=2, program="p"
    )
    with no_room(), pytest.raises(PotluckError, match=r"cannot be written.*free some space"):
        checkpoint.write(tmp_path, position, {"w": torch.zeros(10_000)}, {})
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_final_model_without_room_is_not_there(tmp_path: Path) -> None:
    with no_room(), pytest.raises(PotluckError, match=r"model\.safetensors: cannot be written.*free some.*--resume"):
        save_model(tmp_path, {"w": torch.zeros(10_000)})
    assert list(tmp_path.iterdir()) == []
