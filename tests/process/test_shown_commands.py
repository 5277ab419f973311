"""A command that potluck shows can be typed as it is, where it was shown."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.process.agents import ROOT


def test_a_command_that_a_refusal_shows_works_where_it_was_shown(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)

    refused = run(sys.executable, "-m", "potluck", "trian")
    assert refused.returncode == 2
    _, _, shown = refused.stderr.strip().partition(" Try ")
    assert "Usage: " in run(*shlex.split(shown)).stdout
