"""A journal: whatever was interrupted, what is left is a beginning of what was written, and it can go on."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import InputError, PotluckError
from potluck.journal import Journal, read_journal

LINES = st.lists(st.dictionaries(st.text(), st.text() | st.integers()).map(lambda x: json.dumps(x).encode()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal")
    for number in range(3):
        journal.append(b'{"n":%d}' % number, durable=False)
    journal.close()
    return tmp_path / "journal"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long a file was whenever it was synced."""
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    return sizes


@given(LINES, st.data())
def test_any_beginning_of_the_bytes_is_a_beginning_of_the_lines_and_goes_on(lines: list[bytes], data: st.DataObject):
    whole = b"".join(line + b"\n" for line in lines)
    cut = data.draw(st.integers(0, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(whole[:cut])
        kept, end = read_journal(path, bytes)
        assert kept == lines[: len(kept)]
        assert end == sum(len(line) + 1 for line in kept) <= cut
        assert len(kept) == len(lines) or cut < end + len(lines[len(kept)]) + 1
        journal = Journal(path)
        assert (journal.lines(), journal.torn) == (kept, end < cut)
        journal.append(b'{"next":1}', durable=True)
        journal.close()
        assert read_journal(path, bytes) == ([*kept, b'{"next":1}'], path.stat().st_size)
        assert read_journal(path, bytes, end)[0] == [b'{"next":1}']


@pytest.mark.parametrize("torn", [b'{"n":', b'\0\0\0"}\n', b"\0\0"])
def test_a_torn_last_line_is_left_out_when_read_and_cut_off_when_opened(path: Path, torn: bytes):
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert read_journal(path, bytes)[1] == len(whole)
    Journal(path).close()
    assert path.read_bytes() == whole


def test_damage_before_the_last_line_is_an_error_that_names_file_and_line(path: Path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"n":\n' + lines[2])
    with pytest.raises(InputError, match=r"journal, line 2: is damaged: .*; restore the file"):
        read_journal(path, msgspec.json.decode)


def test_a_durable_line_is_on_disk_with_all_before_it_and_others_are_when_it_is_synced(path: Path, synced: list[int]):
    journal = Journal(path)
    journal.append(b"{}", durable=False)
    assert not synced
    journal.append(b"{}", durable=True)
    assert synced == [path.stat().st_size]
    journal.append(b"{}", durable=False)
    journal.sync()
    assert synced[1:] == [path.stat().st_size]


def test_a_new_journal_and_what_it_is_cut_to_are_on_disk(path: Path, synced: list[int]):
    Journal(path.with_name("new")).close()
    assert len(synced) == 1  # the folder
    Journal(path).truncate_from(1)
    assert synced[1] == len(b'{"n":0}\n')
    assert len(synced) == 3  # the file, then the folder


@pytest.mark.parametrize("number", range(5))
def test_lines_from_one_on_are_forgotten_and_others_follow(path: Path, number: int):
    journal = Journal(path)
    journal.truncate_from(number)
    kept = min(number, 3)
    assert len(journal) == len(read_journal(path, bytes)[0]) == kept
    journal.append(b'{"n":9}', durable=False)
    assert journal.line(kept) == b'{"n":9}'
    assert Journal(path).lines() == journal.lines()
    assert [p.name for p in path.parent.iterdir()] == ["journal"]


def test_a_line_that_could_neither_be_written_nor_cut_off_is_overwritten(path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal(path)

    def fails(*arguments: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        patch.setattr(os, "ftruncate", fails)
        with pytest.raises(PotluckError, match=r"journal: cannot be written: Input/output error; free some space"):
            journal.append(b'{"long":"line"}', durable=True)
    journal.append(b"{}", durable=True)
    assert path.read_bytes().endswith(b'{"n":2}\n{}\n')
