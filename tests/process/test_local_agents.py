"""Agents that a coordinator starts: nothing is left of them, and their last words are known."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from potluck.coordinator.fleet.local_devices import LocalAgents
from potluck.types import DeviceSpec
from potluck.wire.messages import PROOF_VARIABLE
from tests.process.link_calls import wait_for

NOBODY = "127.0.0.1"  # no port: refused at once


def test_what_a_device_says_is_known_and_kept_in_no_file_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalAgents([DeviceSpec(name="a")], NOBODY) as agents:
        assert list(tmp_path.iterdir()) == []
        agents.processes["a"].wait(30.0)
        assert "ended with code 2: potluck: " in agents.died()["a"]
    assert list(tmp_path.iterdir()) == []


def test_a_device_knows_its_word_from_its_environment_only() -> None:
    # A coordinator that never answers: a device that has ended has no environment any more.
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        LocalAgents([DeviceSpec(name="a"), DeviceSpec(name="b")], f"127.0.0.1:{silent.getsockname()[1]}") as agents,
    ):
        assert agents.proofs["a"] != agents.proofs["b"]
        folder = Path(f"/proc/{agents.processes['b'].pid}")
        if not folder.is_dir():
            pytest.skip("no /proc here")
        # Popen returns as soon as exec has closed its pipe; the kernel shows the new environment a little later.
        wait_for(lambda: (folder / "environ").read_bytes() != b"")
        assert f"{PROOF_VARIABLE}={agents.proofs['b']}".encode() in (folder / "environ").read_bytes().split(b"\0")
        assert agents.proofs["b"].encode() not in (folder / "cmdline").read_bytes()
    assert PROOF_VARIABLE not in os.environ
