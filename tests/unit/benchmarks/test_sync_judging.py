"""Weights are judged in the background, with the time at which they existed; who is ready says so and waits."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.sync import await_file as waiting
from benchmarks.sync.flower_run import await_ready, read_looks
from benchmarks.sync.judging import Judging
from benchmarks.sync.runs import Course

WAIT_S = 20.0


def test_who_makes_weights_goes_on_and_only_the_newest_are_judged_then():
    looks, begun, go_on = list[tuple[int, float, str]](), threading.Event(), threading.Event()

    def judge(round: int, at_s: float, weights: str) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        looks.append((round, at_s, weights))

    judging = Judging[str](judge)
    judging.put(1, 0.5, "first")
    assert begun.wait(WAIT_S)
    judging.put(2, 1.0, "overtaken")
    judging.put(3, 1.5, "newest")
    assert looks == []  # nobody waited
    go_on.set()
    judging.finish()
    assert looks == [(1, 0.5, "first"), (3, 1.5, "newest")]


def test_weights_that_cannot_be_judged_are_an_error():
    def judge(round: int, at_s: float, weights: str) -> None:
        raise ValueError("of another shape")

    judging = Judging[str](judge)
    judging.put(1, 0.5, "first")
    with pytest.raises(RuntimeError, match="could not be judged"):
        judging.finish()
    with pytest.raises(RuntimeError, match="could not be judged"):
        judging.put(2, 1.0, "second")


def test_a_file_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "start").touch()
    waiting.await_file(tmp_path / "start")
    monkeypatch.setattr(waiting, "MOST_S", 0.0)
    with pytest.raises(SystemExit, match="did not appear"):
        waiting.await_file(tmp_path / "never")


@pytest.mark.parametrize(("said", "ready"), [("ready", True), ("no", False)])
def test_a_server_is_read_from_when_it_is_ready(said: str, ready: bool):
    looks = '{"round": 4, "at_s": 1.5, "loss": 0.75}'
    program = f"print('words'); print({said!r}); print({looks!r}); print('more')"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE) as server:
        found = Course()
        assert await_ready(server) == ready
        read_looks(server, found)
    assert found.curve == ([(1.5, 0.75)] if ready else [])
    assert found.pushes == (4 if ready else 0)
