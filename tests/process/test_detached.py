"""Runs that need no terminal: begun by one, looked at and ended from others, whatever becomes of the first."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from potluck.commands.run_log import LOG
from potluck.commands.run_state import FoundRun, look
from potluck.coordinator.run_folder.process_record import PROCESS, alive, facts_of, written
from potluck.settings.own_command import called_by
from tests.process.command_line import DEADLINE_S, Potluck

# A session of its own on a terminal of its own: begins a run, and stays until the terminal is closed.
SHELL = """
import fcntl, signal, subprocess, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests with nohup has it ignored
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
done = subprocess.run([sys.executable, "-m", "potluck", *sys.argv[1:]])
print("ended with", done.returncode, flush=True)
signal.pause()  # not a read: where the terminal closes, that may fail before the signal comes
"""

GENTLY = """
import dataclasses, time
job = dataclasses.replace(job, checkpoint_every=5, callbacks=[lambda record: time.sleep(PAUSE_S)])
"""


@pytest.fixture
def potluck(tmp_path) -> Iterator[Potluck]:
    with Potluck(tmp_path) as it:
        yield it


def _long_job(potluck: Potluck, pause_s: float = 0.05) -> str:
    """A job that lasts until it is stopped, and leaves the processor to those who look at it."""
    path = potluck.folder / potluck.job(rounds=1_000_000)
    with path.open("a") as file:
        file.write(GENTLY.replace("PAUSE_S", str(pause_s)))
    return path.name


def _shown(*arguments: str) -> str:
    """A command as potluck shows it, where it was called as it is here."""
    return shlex.join([*called_by("__main__.py", sys.executable, Path("/nowhere"), shutil.which), *arguments])


def _wait_for(condition: Callable[[], bool], instead: Callable[[], str] = lambda: "") -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"the condition never came true {instead()}"
        pause.wait(0.05)


def _until(run: Path, condition: Callable[[FoundRun], bool]) -> FoundRun:
    _wait_for(lambda: condition(look(run)), lambda: f"{look(run)}: {(run / LOG).read_text()}")
    return look(run)


def _has_trained(more_than: int) -> Callable[[FoundRun], bool]:
    return lambda found: found.state == "running" and found.records.view.done > more_than


def _status(potluck: Potluck, *arguments: str) -> dict:
    code, out, err = potluck.run("status", *arguments, "--json")
    assert code == 0, err
    found: dict = json.loads(out)
    return found


def _begin_in_a_terminal_and_close_it(potluck: Potluck, *arguments: str) -> str:
    """What the terminal showed."""
    ours, theirs = os.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-c", SHELL, *arguments], cwd=potluck.folder, env=potluck.environment | {"TERM": "dumb"},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while not re.search(rb"ended with -?\d+\s", shown):
        shown += os.read(ours, 4096)  # it has deadlines of its own
    os.close(ours)
    assert shell.wait(DEADLINE_S) == -signal.SIGHUP
    return shown.decode()


@pytest.mark.timeout(240)  # a dozen processes, one after the other
def test_a_run_outlives_its_terminal_and_is_looked_at_and_stopped_from_others(potluck):
    job, run = _long_job(potluck), potluck.folder / "runs" / "it"
    shown = _begin_in_a_terminal_and_close_it(potluck, "train", job, "--local", "1", "--detach", "--run-dir", "runs/it")
    assert "ended with 0" in shown, shown
    assert _shown("attach", "runs/it") in shown
    seen = _until(run, _has_trained(0)).records.view.done
    _until(run, _has_trained(seen))

    found = _status(potluck)
    assert (found["state"], found["run_dir"], found["rounds"]) == ("running", "runs/it", 1_000_000)
    assert list(found["devices"]) == ["local"]
    code, _, err = potluck.run("train", job, "--resume", "--run-dir", "runs/it")
    assert code == 2
    assert f"process {found['process']} trains in this folder" in err

    facts = written(run)
    assert alive(facts) is not None
    code, out, err = potluck.run("stop")
    assert code == 0, err
    assert alive(facts) is None
    assert "stopped" in out.splitlines()[0]
    go_on = out.splitlines()[1].removeprefix("go on").strip()
    assert go_on == _shown("train", "job.py", "--local=1", "--resume", "--run-dir", "runs/it")
    stopped = _status(potluck)
    assert (stopped["state"], stopped["process"]) == ("stopped", None)
    assert stopped["checkpoint"] == stopped["rounds_done"] > seen
    assert not (run / PROCESS).exists()

    code, out, err = potluck.run("attach")  # it is over: shown, and back
    assert code == 0, err
    assert f"round {stopped['rounds_done']}/1000000" in err
    assert "stopped" in out
    code, out, err = potluck.run("stop")
    assert (code, out) == (2, "")
    assert err == f"potluck: runs/it is not running; see how it ended with: {_shown('status', 'runs/it')}\n"


def test_bad_input_gets_one_line_and_leaves_nothing(potluck):
    (potluck.folder / "raises.py").write_text("raise RuntimeError('two\\nlines')\n")
    for arguments, what in ((["none.py"], "none.py: no such file"), (["raises.py", "--json"], "line 1: RuntimeError")):
        code, out, err = potluck.run("train", *arguments, "--detach")
        assert code == 2
        (line,) = (line for line in err.splitlines() if not line.startswith("starting"))
        assert line.startswith("potluck: ")
        assert what in line
        if "--json" in arguments:
            assert json.loads(out) == {"error": line.removeprefix("potluck: "), "exit_code": 2}
    left = {path.name for path in potluck.folder.iterdir()} - {"__pycache__"}  # Python's own, where it may write it
    assert left == {"raises.py"}


def test_a_process_that_has_the_number_of_one_that_is_gone_is_left_alone(potluck):
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        facts = facts_of(psutil.Process(other.pid), 0)
        assert alive(facts) is not None
        run = potluck.folder / "run"
        run.mkdir()
        gone = msgspec.structs.replace(facts, started_s=facts.started_s - 3600.0)
        (run / PROCESS).write_bytes(msgspec.json.encode(gone))
        code, _, err = potluck.run("stop", "run", "--now")
        assert code == 2
        assert "run is not running" in err
        assert _status(potluck, "run")["state"] == "interrupted"
        code, out, _ = potluck.run("attach", "run")
        assert code == 1
        assert "its process is gone" in out
    finally:
        other.communicate(b"", timeout=DEADLINE_S)
    assert other.returncode == 0  # its input ended; nothing else ended it


@pytest.mark.full
@pytest.mark.timeout(240)  # it trains twice
def test_a_run_that_was_stopped_goes_on_detached_again(potluck):
    run = potluck.folder / "run"
    code, _, err = potluck.run("train", _long_job(potluck), "--local", "1", "--detach", "--run-dir", "run")
    assert code == 0, err
    _until(run, _has_trained(0))
    code, out, err = potluck.run("stop", "run")
    assert code == 0, err
    stopped = _status(potluck, "run")["rounds_done"]

    potluck.job(rounds=stopped + 5)
    go_on = out.splitlines()[1].removeprefix("go on").strip()
    code, _, err = potluck.run(*shlex.split(go_on)[shlex.split(go_on).index("train") :], "--detach")
    assert code == 0, err
    code, out, err = potluck.run("attach", "run")
    assert code == 0, err
    assert "finished" in out
    found = _status(potluck, "run")
    assert (found["state"], found["rounds_done"], found["process"]) == ("finished", stopped + 5, None)
    code, out, err = potluck.run("verify", "--run", "run")
    assert code == 0, out
    assert "every sample of every epoch was used exactly once" in out


@pytest.mark.full
def test_whoever_looks_may_leave_and_a_run_that_vanishes_was_interrupted(potluck):
    run = potluck.folder / "run"
    code, out, err = potluck.run("train", _long_job(potluck), "--local", "1", "--detach", "--run-dir", "run", "--json")
    assert code == 0, err
    begun = json.loads(out)
    assert begun["status"] == _shown("status", "run")
    _until(run, lambda found: found.records.checkpoint is not None)

    looking = potluck.start("attach", "run")
    assert looking.stderr is not None
    assert any(line.startswith("round ") for line in iter(looking.stderr.readline, ""))
    looking.send_signal(signal.SIGINT)
    out, err = looking.communicate(timeout=DEADLINE_S)
    assert (looking.returncode, out.partition(";")[0]) == (130, "detached")
    seen = look(run).records.view.done
    _until(run, _has_trained(seen))

    looking = potluck.start("attach", "run")
    assert looking.stderr is not None
    assert any(line.startswith("round ") for line in iter(looking.stderr.readline, ""))
    os.kill(begun["process"], signal.SIGKILL)
    out, err = looking.communicate(timeout=DEADLINE_S)
    assert looking.returncode == 1, err
    assert "--resume --run-dir run" in out
    assert _status(potluck, "run")["state"] == "interrupted"
    _wait_for(lambda: not potluck.alive())  # its device sees that the coordinator is gone


@pytest.mark.full
def test_a_run_that_is_stopped_at_once_ends_in_the_middle_of_a_round(potluck):
    run = potluck.folder / "run"
    job = _long_job(potluck, pause_s=1.0)  # a round takes longer than it takes to ask twice
    code, _, err = potluck.run("train", job, "--local", "1", "--detach", "--run-dir", "run")
    assert code == 0, err
    assert _status(potluck, "run")["state"] in ("starting", "running")
    _until(run, lambda found: found.records.checkpoint is not None)
    code, out, err = potluck.run("stop", "run", "--now")
    assert code == 0, err
    assert "interrupted" in out.splitlines()[0]
    assert "--resume --run-dir run" in out.splitlines()[1]
    assert "potluck: interrupted" in (run / LOG).read_text()


@pytest.mark.full
def test_devices_join_a_detached_run_by_the_line_that_it_prints(potluck):
    arguments = ("--no-local", "--devices", "1", "--detach", "--run-dir", "run")
    code, out, err = potluck.run("train", potluck.job(rounds=50), *arguments)
    assert code == 0, err
    (line,) = (line for line in out.splitlines() if line.startswith("on each other device run:"))
    looking = potluck.start("attach", "run")
    code, _, err = potluck.run(*line.partition("potluck ")[2].split(), "--name", "guest", "--threads", "1")
    assert code == 0, err
    out, err = looking.communicate(timeout=DEADLINE_S)
    assert looking.returncode == 0, err
    assert "waiting for 1 more" in err
    assert "round 50/50" in err
    assert "finished" in out
    assert _status(potluck, "run")["state"] == "finished"
