"""Pairs of pushes and pulls are counted only while everybody is there, and waited for only so long."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.sync.pairs import await_pushes, check
from benchmarks.sync.pairs_keeping import PairsKeeping
from potluck.coordinator.run_folder.push_log import PUSHES, PushLog
from potluck.metrics.records import RECORDS, PushRecord, read
from potluck.paramserver.applied_pushes import Push
from potluck.paramserver.messages import PushWords
from potluck.paramserver.policy import Policy
from potluck.paramserver.server import ParameterServer, Reply

SAID = PushWords(
    push=Push(worker="w0", incarnation=1, sequence=1, base=0, steps=1, samples=1, loss=1.0), overhead_s=0.0
)


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[PairsKeeping]:
    made = PairsKeeping(tmp_path)
    yield made
    made.close()


def _program(words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", words])


def test_a_client_that_ends_is_an_error_and_not_waited_for(keeping: PairsKeeping):
    with _program("raise SystemExit(3)") as client:
        client.wait()
        with pytest.raises(RuntimeError, match="w0 ended with code 3"):
            await_pushes(keeping, {"w0": client}, 1)


def test_clients_that_say_nothing_are_waited_for_only_so_long(keeping: PairsKeeping):
    with _program("import time; time.sleep(60)") as client:
        try:
            with pytest.raises(RuntimeError, match="0 pushes in 0 s"):
                await_pushes(keeping, {"w0": client}, 1, most_s=0.0)
            keeping.pushed(SAID, Reply("applied", version=1))
            await_pushes(keeping, {"w0": client}, 1, most_s=0.0)
        finally:
            client.kill()


@pytest.mark.parametrize("what", ["lost", "failed", "known"])
def test_what_goes_wrong_in_a_thread_is_an_error(keeping: PairsKeeping, what: str):
    check(keeping, {})
    match what:
        case "lost":
            keeping.lost("w0", 1, "no answer")
        case "failed":
            keeping.failed(ValueError("bad"))
        case _:
            keeping.pushed(SAID, Reply("known"))
    with pytest.raises(RuntimeError, match=r"no answer|bad|is known"):
        check(keeping, {})


def test_pushes_have_records_and_weights_a_snapshot(keeping: PairsKeeping, tmp_path: Path):
    server = ParameterServer({"w": torch.zeros(4)}, Policy(), PushLog(tmp_path / PUSHES), keeping.save)
    server.enter("w0", 1, 0.0)
    keeping.pushed(SAID, server.push(SAID.push, torch.ones(4), 0.0, 0.0))
    assert server.save() == 1
    server.close()
    assert [r.version for r in read(tmp_path / RECORDS) if isinstance(r, PushRecord)] == [1]
    assert list((tmp_path / "server").rglob("*.safetensors"))
    assert keeping.snapshots == 1
