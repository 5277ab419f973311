"""The example with text of its own on each device, for a few rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.command_line import DEADLINE_S, ROOT, Potluck

ROUNDS = 60


@pytest.mark.full
def test_devices_learn_from_texts_that_stay_with_them(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "private_text.py").read_text()
    assert "rounds=1500" in text
    (tmp_path / "job.py").write_text(text.replace("rounds=1500", f"rounds={ROUNDS}"))
    with Potluck(tmp_path) as potluck:
        write = [sys.executable, "job.py", "pages"]
        subprocess.run(write, cwd=tmp_path, env=potluck.environment, check=True, timeout=DEADLINE_S)
        arguments = ["--sync", "ours", "--local", "a=1,b=0.5", "--data", "text=pages/{device}.txt"]
        code, out, err = potluck.run("train", "job.py", *arguments, "--run-dir", "run", "--json")
        assert code == 0, err
        result = json.loads(out.splitlines()[-1])
        assert result["rounds"] >= ROUNDS
        assert (result["samples_lost"], result["samples_doubled"]) == (0, 0)
        assert result["bits_per_byte"] < 7  # 8 is guessing
        devices = result["devices"]
        assert set(devices) == {"a", "b"}
        assert sum(one["trained"] for one in devices.values()) >= ROUNDS * 32
        for name, one in devices.items():
            assert one["samples"] == ((tmp_path / "pages" / f"{name}.txt").stat().st_size - 1) // 32
        _, out, _ = potluck.run("status", "run")
        assert any(line.startswith("devices") and "own samples" in line for line in out.splitlines())
