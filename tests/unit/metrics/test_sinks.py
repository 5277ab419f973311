"""Sinks get every record of a run; one that fails is left out, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from potluck.metrics import sinks
from potluck.metrics.records import CheckpointRecord, Record
from potluck.metrics.sinks import RunSinks, register_sink

RECORDS = [CheckpointRecord(round=round, bytes=1, seconds=0.0, at_s=0.0) for round in range(3)]


class Kept:
    """Keeps what it is told, and fails where it is told to."""

    def __init__(self, folder: Path, fails_at: str = "") -> None:
        self.told: list[object] = [folder]
        self.fails_at = fails_at
        self._maybe("open")

    def record(self, record: Record) -> None:
        self.told.append(record)
        self._maybe("record")

    def close(self) -> None:
        self.told.append("closed")
        self._maybe("close")

    def _maybe(self, here: str) -> None:
        if here == self.fails_at:
            raise RuntimeError("no\nroom")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Kept]]:
    """Registers one more sink; returns where those that are opened will be."""
    monkeypatch.setattr(sinks, "_FACTORIES", [])

    def register(fails_at: str = "") -> list[Kept]:
        opened: list[Kept] = []

        def factory(folder: Path) -> Kept:
            opened.append(Kept(folder, fails_at))
            return opened[-1]

        register_sink(factory)
        return opened

    return register


def tell(folder: Path) -> list[str]:
    """The warnings of a run with three records."""
    said: list[str] = []
    with closing(RunSinks(folder, said.append)) as watcher:
        for record in RECORDS:
            watcher.record(record)
    return said


def test_a_sink_is_opened_with_the_folder_gets_every_record_and_is_closed(made, tmp_path):
    opened = made()
    assert tell(tmp_path) == []
    assert opened[0].told == [tmp_path, *RECORDS, "closed"]
    assert tell(tmp_path / "next") == []
    assert [one.told[0] for one in opened] == [tmp_path, tmp_path / "next"]


def test_a_run_that_fails_closes_its_sinks(made, tmp_path):
    opened = made()

    def run() -> None:
        with closing(RunSinks(tmp_path, print)) as watcher:
            watcher.record(RECORDS[0])
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert opened[0].told[-1] == "closed"


def test_a_run_that_never_begins_opens_none(made, tmp_path):
    opened = made()
    with closing(RunSinks(tmp_path, print)):
        pass
    assert opened == []


@pytest.mark.parametrize(("fails_at", "told"), [("open", 0), ("record", 2), ("close", 5)])
def test_a_sink_that_fails_is_left_out_with_one_line_and_the_others_go_on(made, tmp_path, fails_at, told):
    before, failing, after = made(), made(fails_at), made()
    said = tell(tmp_path)
    assert len(said) == 1
    assert "failed (RuntimeError: no room); training goes on without it" in said[0]
    assert [len(one.told) for one in failing] == ([told] if told else [])
    for other in (*before, *after):
        assert other.told == [tmp_path, *RECORDS, "closed"]
