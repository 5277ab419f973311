"""The ledger survives an interrupted write and refuses what does not follow."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.control.ledger import entry, loss_digest
from potluck.coordinator.run_folder.ledger_file import Ledger
from potluck.errors import InputError, PotluckError


def make(round, ids=(3, 1, 2), loss=0.1, term=1):
    return entry(round=round, epoch=0, term=term, ids=ids, loss=loss, digest=loss_digest([loss]))


@pytest.fixture
def path(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for round in range(3):
        ledger.append(make(round))
    ledger.close()
    return tmp_path / "ledger.jsonl"


def test_what_is_appended_is_there_when_reopened(path):
    again = Ledger(path)
    assert again.rounds == 3
    assert list(again.entries()) == [make(r) for r in range(3)]
    assert float.fromhex(again.entry(1).loss) == 0.1
    again.append(make(3))
    assert Ledger(path).rounds == 4


def test_an_entry_is_on_disk_before_append_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda f: synced.append(os.fstat(f).st_size))
    ledger = Ledger(path)
    ledger.append(make(3))
    assert synced == [path.stat().st_size]
    quick = Ledger(path, fsync=False)
    quick.append(make(4))
    assert len(synced) == 1
    assert Ledger(path).rounds == 5


@pytest.mark.parametrize("round", [0, 2, 4])
def test_a_round_that_does_not_come_next_is_refused(path, round):
    with pytest.raises(ValueError, match="where 3 comes next"):
        Ledger(path).append(make(round))


@given(cut=st.integers(0, 10_000))
def test_a_torn_last_line_is_cut_off(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("run") / "ledger.jsonl"
    ledger = Ledger(path, fsync=False)
    ends = [0]
    for round in range(3):
        ledger.append(make(round))
        ends.append(path.stat().st_size)
    size = cut % (ends[-1] + 1)
    os.truncate(path, size)
    again = Ledger(path, fsync=False)
    assert again.rounds == sum(end <= size for end in ends[1:])
    assert path.stat().st_size == ends[again.rounds]
    again.append(make(again.rounds))
    assert Ledger(path, fsync=False).rounds == again.rounds


def test_damage_before_the_last_line_is_refused_and_named(path):
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong in (b"{}\n", b"\xff\n", lines[0]):
        path.write_bytes(lines[0] + wrong + lines[2])
        with pytest.raises(InputError, match=r"ledger\.jsonl, line 2"):
            Ledger(path)


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_failed_write_commits_nothing_and_can_be_tried_again(path, monkeypatch, call):
    ledger = Ledger(path)
    before = path.read_bytes()

    def full(file, data=b"", at=0):
        if data:
            os.lseek(file, at, os.SEEK_SET)
            os.write(file, data[:5])  # some of it arrives before the disk is full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(PotluckError, match=r"No space left.*its round is not committed"):
            ledger.append(make(3))
    assert path.read_bytes() == before
    assert ledger.rounds == 3
    ledger.append(make(3))
    assert Ledger(path).rounds == 4


@pytest.mark.parametrize("last", [-1, 0, 1, 2, 9])
def test_rounds_after_a_checkpoint_are_forgotten(path, last):
    ledger = Ledger(path)
    ledger.truncate_after(last)
    kept = min(last + 1, 3)
    assert ledger.rounds == Ledger(path).rounds == kept
    ledger.append(make(kept, loss=9.0))
    assert Ledger(path).entry(kept) == make(kept, loss=9.0)
    assert [p.name for p in path.parent.iterdir()] == ["ledger.jsonl"]


def test_a_replay_with_the_same_bits_changes_nothing(path):
    ledger, before = Ledger(path), path.read_bytes()
    assert ledger.replay(make(1, term=5)) == ""
    assert (ledger.rounds, path.read_bytes()) == (3, before)


@pytest.mark.parametrize(("what", "change"), [("loss", {"loss": 0.1 + 1e-16}), ("samples", {"ids": (1, 3, 2)})])
def test_from_the_first_difference_on_the_ledger_says_what_was_trained_again(path, what, change):
    ledger = Ledger(path)
    assert ledger.replay(make(0, term=2)) == ""
    assert ledger.replay(make(1, term=2, **change)) == what
    assert list(Ledger(path).entries()) == [make(0), make(1, term=2, **change)]
    ledger.append(make(2, term=2))
    assert [entry.term for entry in Ledger(path).entries()] == [1, 2, 2]
