"""Data that a device owns never leaves it: everything that does is captured and searched."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.testbed import Testbed, join_all, start_potluck
from potluck.coordinator.run_folder.push_log import PUSHES, entries
from potluck.types import COORDINATOR
from tests.process.testbed_programs import PATIENCE_S, ROOT, fleet_of, on_a_testbed

pytestmark = [*on_a_testbed, pytest.mark.full, pytest.mark.timeout(300)]

CANARY = np.float32(0.8712345)
WORD = b"the-canary-sings-at-dawn"
MODEL_BYTES = 4 * (256 * 512 + 512 + 512 * 256 + 256)
JOB = """
import torch
from torch import nn
import potluck

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
judged = torch.randn(8, 256), torch.randint(0, 256, (8,))
job = potluck.Job(
    model=model, loss=nn.functional.cross_entropy, optimizer=potluck.SGD(lr=0.01), data="mine", eval_data=judged,
    batch_size=8, rounds=240, seed=3,
)
"""
LISTEN = """
import socket
server = socket.create_server(("", 9999))
print("ready", flush=True)
server.accept()[0].recv(1 << 16)
"""
LEAK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as line:
    line.sendall(bytes.fromhex(sys.argv[3]))
"""


def shard(folder: Path, device: str) -> Path:
    """Samples that all begin with the canary, and bytes of text beside them."""
    chance = np.random.default_rng(len(device))
    inputs = chance.normal(size=(64, 256)).astype(np.float32)
    inputs[:, :8] = CANARY
    path = folder / f"{device}.npz"
    np.savez(path, input=inputs, label=chance.integers(0, 256, 64), note=np.array([WORD] * 64))
    return path


def found_in(folder: Path) -> list[str]:
    """What of the canary was seen, and where."""
    wanted = {"float32": np.full(4, CANARY).tobytes(), "float64": np.full(4, CANARY, np.float64).tobytes()}
    wanted |= {"text": WORD, "printed": str(CANARY).encode()}
    flows = {flow.name: flow.read_bytes() for flow in folder.iterdir()}
    return [f"{name} in {flow}" for flow, sent in flows.items() for name, word in wanted.items() if word in sent]


def test_no_sample_leaves_a_device_and_little_more_than_its_pushes_does(tmp_path: Path) -> None:
    captured = tmp_path / "captured"
    captured.mkdir()
    (tmp_path / "job.py").write_text(JOB)
    with Testbed(fleet_of(0.5, 0.5), name="stays") as bed:
        sniffer = bed.start(
            "d0", [sys.executable, str(ROOT / "tests/process/sniffer.py"), str(captured)], stdout=subprocess.PIPE
        )
        assert sniffer.stdout is not None
        assert sniffer.stdout.readline() == b"ready\n"
        run = tmp_path / "run"
        train = start_potluck(bed, ["train", str(tmp_path / "job.py"), "--sync", "local:10", "--run-dir", str(run)])
        shards = {device: shard(tmp_path, device) for device in bed.devices}
        more = {device: ["--data", f"mine={path}", "--data", f"mine:eval={path}"] for device, path in shards.items()}
        join_all(bed, logs=tmp_path, more=more)
        assert train.wait(PATIENCE_S * 4) == 0
        pushes = sum(entry.push.worker == "d0" for entry in entries(run / PUSHES))
        assert pushes > 5
        assert found_in(captured) == []
        out = sum(flow.stat().st_size for flow in captured.iterdir())
        most = (pushes + 1) * 1.02 * MODEL_BYTES * 1.01  # one may be under way at the end
        assert pushes * MODEL_BYTES <= out <= most
        _leak(bed, tmp_path)
        deadline = time.monotonic() + PATIENCE_S
        while len(found_in(captured)) < 2:  # the check can fail
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _leak(bed: Testbed, folder: Path) -> None:
    """Sends a sample on purpose."""
    server = bed.start(COORDINATOR, [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    sample = (np.load(folder / "d0.npz")["input"][0].tobytes() + WORD).hex()
    leak = bed.start("d0", [sys.executable, "-c", LEAK, bed.address(COORDINATOR), "9999", sample])
    assert leak.wait(PATIENCE_S) == 0
