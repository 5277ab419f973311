"""A command that is shown can be typed as it is, whether potluck is on the PATH or not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from potluck.settings.own_command import called_by, command

HERE = Path("/home/me/potluck")
PYTHON = "/home/me/potluck/.venv/bin/python3"


@pytest.mark.parametrize(
    ("script", "on_path", "folder", "words"),
    [
        ("/usr/bin/potluck", "/usr/bin/potluck", HERE, ["potluck"]),
        ("/home/me/potluck/.venv/bin/potluck", None, HERE, [".venv/bin/potluck"]),  # as after make demo
        ("/home/me/potluck/.venv/bin/potluck", "/usr/bin/potluck", HERE, [".venv/bin/potluck"]),  # that is another one
        ("/home/me/potluck/.venv/bin/potluck", None, HERE / "runs", ["/home/me/potluck/.venv/bin/potluck"]),
        ("/home/me/potluck/.venv/bin/potluck", None, HERE / ".venv/bin", ["./potluck"]),
        ("/home/me/potluck/potluck/__main__.py", "/usr/bin/python3", HERE, [".venv/bin/python3", "-m", "potluck"]),
        ("/home/me/potluck/potluck/__main__.py", PYTHON, HERE, ["python3", "-m", "potluck"]),
        ("/home/me/my_own_program.py", None, HERE, ["potluck"]),
    ],
)
def test_the_shortest_way_to_call_this_potluck(
    script: str, on_path: str | None, folder: Path, words: list[str]
) -> None:
    assert called_by(script, PYTHON, folder, lambda name: on_path) == words


def test_a_path_is_taken_from_where_potluck_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["my venv/bin/potluck", "demo"])
    assert command("status", Path("runs/a b")) == "'my venv/bin/potluck' status 'runs/a b'"
