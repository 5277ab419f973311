"""The command line with real processes: what it promises, and that it leaves nothing behind."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.process.command_line import DEADLINE_S, Potluck, wait_for_line


@pytest.fixture
def potluck(tmp_path) -> Iterator[Potluck]:
    with Potluck(tmp_path) as it:
        yield it


def test_help_is_quick_because_nothing_heavy_is_imported(potluck):
    code = "import sys, potluck.cli.main; sys.exit(bool({'torch', 'rich', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env=potluck.environment, timeout=DEADLINE_S)
    assert done.returncode == 0


def test_the_demo_reads_digits_and_loses_no_sample(potluck):
    code, out, err = potluck.run("demo", "--json", "--run-dir", "demo")
    assert code == 0, err
    (line,) = out.splitlines()
    result = json.loads(line)
    assert result["accuracy"] >= 0.95
    assert (result["samples_lost"], result["samples_doubled"]) == (0, 0)
    assert result["rounds"] == 150
    assert (potluck.folder / result["model"]).is_file()
    assert 0 < result["seconds"] < 60
    code, out, _ = potluck.run("verify", "--run", "demo")
    assert code == 0
    assert "every sample of every epoch was used exactly once" in out


def test_ctrl_c_finishes_the_round_and_the_run_can_be_resumed(potluck):
    job = potluck.job(rounds=100_000)
    process = potluck.start("train", job, "--local", "1,0.5", "--run-dir", "run", "--json")
    wait_for_line(process, "round ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    stopped = json.loads(out.splitlines()[-1])
    assert stopped["reason"] == "stopped"
    assert (potluck.folder / stopped["model"]).is_file()
    assert stopped["resume"].endswith("--json --resume --run-dir run")

    more = 5
    potluck.job(rounds=stopped["rounds"] + more)
    code, out, err = potluck.run("train", job, "--resume")  # no newest run in runs/: this one was put elsewhere
    assert code == 2, err
    code, out, err = potluck.run("train", job, "--local", "1", "--json", "--resume", "--run-dir", "run")
    assert code == 0, err
    resumed = json.loads(out.splitlines()[-1])
    assert (resumed["reason"], resumed["rounds"]) == ("finished", stopped["rounds"] + more)
    assert (resumed["samples_lost"], resumed["samples_doubled"]) == (0, 0)


def test_ctrl_c_before_training_stops_at_once(potluck):
    process = potluck.start("train", potluck.job(rounds=100_000), "--no-local", "--devices", "1", "--run-dir", "run")
    wait_for_line(process, "0 of 1 device; waiting for 1 more, until ")
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert time.monotonic() - asked < 10
    assert process.returncode == 130
    assert err.splitlines() == ["stopping", "potluck: interrupted"]


@pytest.mark.full
def test_a_demo_that_was_stopped_goes_on_with_the_command_it_prints(potluck):
    process = potluck.start("demo", "--devices", "1,0.5", "--run-dir", "demo", "--json")
    wait_for_line(process, "round ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    stopped = json.loads(out.splitlines()[-1])
    assert (stopped["reason"], stopped["evaluated_after"]) == ("stopped", None)
    words = shlex.split(stopped["resume"])
    code, out, err = potluck.run(*words[words.index("train") :])
    assert code == 0, err
    resumed = json.loads(out.splitlines()[-1])
    assert (resumed["reason"], resumed["rounds"], resumed["evaluated_after"]) == ("finished", 150, 150)


@pytest.mark.full
def test_a_second_ctrl_c_stops_at_once(potluck):
    process = potluck.start("train", potluck.job(rounds=100_000), "--local", "1,0.1", "--run-dir", "run")
    wait_for_line(process, "round ")
    process.send_signal(signal.SIGINT)
    wait_for_line(process, "stopping after this round")
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert time.monotonic() - asked < 15
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("potluck: interrupted")


def test_a_port_in_use_is_named(potluck):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = potluck.run("train", potluck.job(3), "--listen", f"127.0.0.1:{port}", "--devices", "1")
    assert code == 2
    assert err.splitlines()[-1].startswith(f"potluck: port {port} on 127.0.0.1 is in use; ")
    assert "Traceback" not in err


def test_a_device_that_cannot_start_ends_the_run_with_what_it_said(potluck):
    (potluck.folder / "sitecustomize.py").write_text(
        "import sys\nif 'join' in sys.orig_argv and 'local2' in sys.orig_argv:\n    sys.exit('no such luck')\n"
    )
    potluck.environment["PYTHONPATH"] += f"{os.pathsep}{potluck.folder}"
    code, _, err = potluck.run("train", potluck.job(3), "--local", "1,1")
    assert code == 3
    what = "device local2 ended with code 1: SystemExit: no such luck"
    assert err.splitlines()[-1] == f"potluck: {what}; start again without it, or once it is back"


def test_a_device_joins_from_elsewhere_by_the_line_that_train_prints(potluck):
    train = potluck.start("train", potluck.job(rounds=20), "--no-local", "--devices", "1", "--json")
    invitation = wait_for_line(train, "on each other device run:")[-1]
    arguments = invitation.partition("potluck ")[2].split()
    code, _, err = potluck.run(*arguments, "--name", "guest", "--threads", "1")
    assert code == 0, err
    assert "guest holds stage 1 of 1" in err
    out, err = train.communicate(timeout=DEADLINE_S)
    assert train.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["rounds"] == 20


@pytest.mark.full
def test_a_name_that_is_taken_is_refused_with_the_way_out(potluck):
    train = potluck.start("train", potluck.job(rounds=20), "--local", "desk=1", "--devices", "1", "--json")
    arguments = wait_for_line(train, "on each other device run:")[-1].partition("potluck ")[2].split()
    wait_for_line(train, "1 of 2 devices: desk; ")
    code, _, err = potluck.run(*arguments, "--name", "desk", "--threads", "1")
    assert code == 2, err
    assert "--name" in err.splitlines()[-1]
    code, _, err = potluck.run(*arguments, "--name", "guest")
    assert code == 0, err
    assert "computing with " in err
    assert "--threads changes it" in err
    _, err = train.communicate(timeout=DEADLINE_S)
    assert train.returncode == 0, err
