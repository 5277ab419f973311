"""Folders of runs come with a fresh name and go again if nothing came of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from potluck.coordinator.run_folder import folder_names
from potluck.coordinator.run_folder.folder_names import make, new_run_dir, remove_empty
from potluck.errors import InputError


def test_two_runs_of_one_second_have_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_names, "time", SimpleNamespace(strftime=lambda _: "20260102-030405"))
    found = []
    for _ in range(3):
        found.append(new_run_dir(tmp_path))
        found[-1].mkdir()
    assert [path.name for path in found] == ["20260102-030405", "20260102-030405-2", "20260102-030405-3"]


def test_only_what_was_made_is_removed_and_only_while_it_is_empty(tmp_path: Path) -> None:
    made = make(tmp_path / "a" / "b")
    assert made == (tmp_path / "a" / "b", tmp_path / "a")
    assert make(tmp_path / "a" / "b") == ()
    (tmp_path / "a" / "kept").touch()
    remove_empty(made)
    assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "kept").exists()
    assert tmp_path.exists()


def test_a_folder_that_cannot_be_made_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be made .*give another --run-dir"):
        make(tmp_path / "file" / "run")
