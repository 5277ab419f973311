"""Which process trains in a folder: written down, found again, and never mistaken for another."""

import os
from pathlib import Path

import msgspec
import psutil
import pytest

from potluck.coordinator.run_folder.process_record import (
    PROCESS,
    ProcessFacts,
    RunProcess,
    alive,
    check_free,
    facts_of,
    written,
)
from potluck.errors import InputError

OURS = facts_of(psutil.Process(), 0)


def _write(folder: Path, facts: ProcessFacts) -> None:
    (folder / PROCESS).write_bytes(msgspec.json.encode(facts))


def test_it_is_there_while_the_run_lasts_and_says_where_devices_join(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_bytes(b'{"one":1}\n{"two":2}\n{"to')
    heard: list[str] = []
    with RunProcess(tmp_path) as process:
        facts = written(tmp_path)
        assert facts is not None
        assert (facts.pid, facts.records_before, facts.address) == (os.getpid(), 2, None)
        assert alive(facts).pid == os.getpid()
        process.listening(heard.append)("127.0.0.1:7117")
        facts = written(tmp_path)
        assert facts is not None
        assert (facts.address, heard) == ("127.0.0.1:7117", ["127.0.0.1:7117"])
    assert written(tmp_path) is None


def test_it_is_gone_after_a_failure_too_and_so_is_a_folder_that_nothing_came_of(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "first"
    with pytest.raises(ZeroDivisionError), RunProcess(run_dir):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with RunProcess(run_dir):
        (run_dir / "model").write_text("")
    assert list(run_dir.iterdir()) == [run_dir / "model"]


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(OURS, started_s=OURS.started_s - 1.0),
        msgspec.structs.replace(OURS, boot="another"),
        msgspec.structs.replace(OURS, pid=2**22 + 1),
    ],
    ids=["started before", "another boot", "no such process"],
)
def test_a_number_that_belongs_to_another_process_now_is_not_the_run(tmp_path: Path, other: ProcessFacts) -> None:
    assert alive(OURS) is not None
    assert alive(other) is None
    _write(tmp_path, other)
    check_free(tmp_path)
    with RunProcess(tmp_path):
        facts = written(tmp_path)
        assert facts is not None
        assert facts.started_s == pytest.approx(OURS.started_s)


def test_a_folder_in_which_another_process_trains_is_refused_and_left_alone(tmp_path: Path) -> None:
    there = facts_of(psutil.Process(os.getppid()), 0)
    _write(tmp_path, there)
    with pytest.raises(InputError, match=f"process {there.pid} trains in this folder; end it with: .*potluck stop"):
        RunProcess(tmp_path).__enter__()
    assert written(tmp_path) == there


def test_what_another_process_wrote_since_is_left_alone(tmp_path: Path) -> None:
    there = facts_of(psutil.Process(os.getppid()), 0)
    with RunProcess(tmp_path):
        _write(tmp_path, there)
    assert written(tmp_path) == there


def test_a_damaged_file_names_nobody(tmp_path: Path) -> None:
    (tmp_path / PROCESS).write_bytes(b'{"pid":')
    assert written(tmp_path) is None
    assert alive(None) is None
