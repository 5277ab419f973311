"""Files to write: what is refused before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from potluck.cli.targets import check_writable, write_text
from potluck.errors import InputError


def test_regular_files_and_new_ones_will_do(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for name in ("there", "new", "link"):
        check_writable(tmp_path / name, "--out")
    check_writable(tmp_path / "deep" / "er" / "new", "--save", replaced=True)
    write_text(tmp_path / "link", "new", "--out")
    assert (tmp_path / "there").read_text() == "new"


def test_what_is_no_file_is_refused_and_the_flag_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path, replaced, why in (
        (tmp_path / "fifo", True, "it is no regular file"),
        (tmp_path / "fifo", False, "it is no regular file"),
        (tmp_path / "link", True, "it is a symbolic link"),
        (Path("/dev/null"), True, "it is no regular file"),
        (tmp_path, False, "Is a directory"),
        (tmp_path / "none" / "x", False, "No such file or directory"),
        (tmp_path / "file" / "x", True, "Not a directory"),
        (tmp_path / ("x" * 300), False, "File name too long"),
    ):
        with pytest.raises(InputError) as caught:
            check_writable(path, "--save", replaced=replaced)
        assert str(caught.value) == f"--save: {path} cannot be written ({why}); give another file"
