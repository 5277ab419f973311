"""Peers get a Python of their own, once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.sync import peer_python as under_test
from benchmarks.sync.peer_python import PeerMissing, peer_python


def test_a_peer_is_installed_once_and_again_for_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        commands.append(command)
        (tmp_path / ".flower").mkdir(exist_ok=True)

    monkeypatch.setattr(subprocess, "run", run)
    assert peer_python("flower", tmp_path) == tmp_path / ".flower" / "bin" / "python"
    assert [command[2] for command in commands] == ["venv", "pip"]
    peer_python("flower", tmp_path)
    assert len(commands) == 2
    monkeypatch.setitem(under_test.PACKAGES, "flower", "flwr==2.0.0")
    peer_python("flower", tmp_path)
    assert "flwr==2.0.0" in commands[-1]


def test_a_peer_that_cannot_be_installed_says_why_and_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="a word\nno such version\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(PeerMissing, match=r"no such version; leave it out with --peer none"):
        peer_python("hivemind", tmp_path)
    assert not (tmp_path / ".hivemind" / ".ready").exists()
