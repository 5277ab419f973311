"""The command line where nothing is started: help, and bad input that gets one line and exit code 2."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from potluck.cli.main import main
from potluck.cli.verbs.demo import train_command
from potluck.cli.verbs.join import count_devices, default_name
from potluck.cli.verbs.train import resume_command
from potluck.device.process import nobody_yet

VERBS = ("demo", "train", "plan", "simulate", "join", "verify", "status", "attach", "stop")

JOB = """
import potluck, torch
from torch import nn
job = potluck.Job(
    model=lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), loss=nn.functional.cross_entropy,
    optimizer=potluck.SGD(lr=0.1), data=(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), batch_size=2, epochs=1,
)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "raises.py").write_text("x = 1\nraise RuntimeError('two\\nlines')\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "bad_plan.json").write_text('{"micro_batch_size": 2, "micro_batchs": 1, "stages": []}')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "records.jsonl").write_text("")
    return tmp_path


def _run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env=environment)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_an_example(verb):
    result = _run(verb, "--help")
    assert result.exit_code == 0
    assert f"potluck {verb}" in result.stdout.partition("Example")[2]


def test_no_verb_gives_help():
    result = _run()
    assert result.exit_code == 0
    assert all(verb in result.stdout for verb in VERBS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trane"], "train"),
        (["train"], "JOB"),
        (["train", "job.py", "--lokal", "1"], "--lokal"),
        (["train", "job.py", "--bandwidth", "100"], "--bandwidth: '100' has no unit"),
        (["train", "job.py", "--bandwidth", "100Mbitt"], "did you mean Mbit?"),
        (["train", "job.py", "--memory", "1 elephant"], "--memory"),
        (["train", "job.py", "--local", "1,2"], "--local"),
        (["train", "job.py", "--local", "a b=1"], "--local: device name 'a b'"),
        (["train", "job.py", "--timeout", "0"], "--timeout"),
        (["train", "job.py", "--devices", "many"], "--devices"),
        (["train", "job.py", "--silence", "1min"], "--silence: '1min' does not do; give a duration from 1s to 12s"),
        (["train", "job.py", "--copy-part", "2"], "--copy-part: '2' does not do"),
        (["train", "job.py", "--link-ports", "0-9"], "--link-ports: '0-9' holds no ports"),
        (["join", "127.0.0.1:1", "--link-ports", "a"], "--link-ports: 'a' names no ports"),
        (["train", "job.py", "--carrier", "pigeon"], "--carrier"),
        (["train", "job.py", "--config", "none.toml"], "none.toml"),
        (["train", "none.py"], "none.py: no such file"),
        (["train", "raises.py"], "raises.py, line 2: RuntimeError: two lines"),
        (["train", "empty.py"], "empty.py: defines no 'job'"),
        (["train", "job.py", "--plan", "none.json"], "none.json: No such file"),
        (["train", "job.py", "--plan", "bad_plan.json"], "bad_plan.json: micro_batchs: unknown key"),
        (["train", "job.py", "--local", "1,1,1"], "batch_size 2 is smaller than the 3 devices"),
        (["train", "job.py", "--memory", "10B"], "bytes too many for 'local'"),
        (["train", "job.py", "--resume"], "no run in"),
        (["train", "job.py", "--resume", "--run-dir", "nowhere"], "nowhere holds no run"),
        (["train", "job.py", "--resume", "full"], "Name the folder with --run-dir: --resume takes none"),
        (["train", "job.py", "--run-dir", "full"], "full holds a run already"),
        (["train", "job.py", "--run-dir", "job.py"], "job.py cannot be written to"),
        (["train", "job.py", "--detach", "--run-dir", "full"], "full holds a run already"),
        (["train", "job.py", "--detach", "--bandwidth", "100"], "--bandwidth: '100' has no unit"),
        (["status"], "no run in"),
        (["status", "nowhere"], "nowhere: holds no run; give the folder of one"),
        (["attach", "job.py"], "job.py: holds no run"),
        (["stop"], "no run in"),
        (["stop", "full"], "full is not running; see how it ended with: potluck status full"),
        (["stop", "full", "--timeout", "soon"], "--timeout: 'soon'"),
        (["train", "job.py", "--listen", "192.0.2.1:7117", "--devices", "1"], "--plain-network 192.0.2.0/24"),
        (["train", "job.py", "--listen", "0.0.0.0:7117", "--devices", "1"], "every network at once"),
        (["train", "job.py", "--listen", "7117", "--devices", "1"], "give HOST:PORT"),
        (["train", "job.py", "--no-local", "--devices", "1", "--bandwidth", "1Mbit"], "--bandwidth"),
        (["join", "192.0.2.1:7117"], "--plain-network 192.0.2.0/24"),
        (["join", "192.0.2.1:7117", "--plain-network", "10.0.0.0/8"], "192.0.2.1 is not in --plain-network"),
        (["join", "here"], "give HOST:PORT"),
        (["join", "http://127.0.0.1:7117"], "is a URL; give HOST:PORT alone"),
        (["join", "127.0.0.1:0"], "there is no port 0"),
        (["join", "127.0.0.1:1", "--name", "a b"], "--name: device name 'a b'"),
        (["join", "127.0.0.1:1", "--name", "x" * 65], "at most 64"),
        (["join", "127.0.0.1:1", "--device", "abacus"], "--device"),
        (["verify"], "give either a job file or --run DIR"),
        (["verify", "job.py", "--run", "full"], "give either a job file or --run DIR"),
        (["verify", "--run", "nowhere"], "nowhere/run.json: cannot be read"),
        (["demo", "--devices", "1,,2"], "--devices"),
        (["demo", "--run-dir", "full"], "full holds a run already"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line_and_exit_code_2(arguments, expected):
    result = _run(*arguments)
    assert result.exit_code == 2, result.stderr
    complaints = [line for line in result.stderr.splitlines() if line != "tracing the model"]
    assert len(complaints) == 1, result.stderr
    assert complaints[0].startswith("potluck: ")
    assert expected in complaints[0]
    assert "Traceback" not in result.output
    assert not Path("runs").exists()


def test_whom_a_device_looks_for_is_said_with_until_when_and_what_to_do():
    said = nobody_yet("10.0.0.5:7117", "Connection refused", 300.0)
    assert re.search(r"nobody listens at 10\.0\.0\.5:7117 \(Connection refused\); trying until \d\d:\d\d:\d\d, ", said)
    assert "potluck train JOB --listen 10.0.0.5:7117" in said


def test_a_wrong_key_in_the_folders_file_is_named():
    Path("potluck.toml").write_text("[train]\nbandwith = '1Mbit'\n")
    result = _run("train", "job.py")
    assert result.exit_code == 2
    assert result.stderr == "potluck: potluck.toml: train.bandwith: unknown key; did you mean bandwidth?\n"


def test_a_wrong_variable_is_named():
    result = _run("train", "job.py", POTLUCK_TIMEOUT="soon")
    assert result.exit_code == 2
    assert result.stderr.startswith("potluck: POTLUCK_TIMEOUT: ")


@pytest.mark.parametrize("verb", [("train", "job.py"), ("plan", "job.py"), ("join", "127.0.0.1:1")])
def test_an_extension_that_cannot_be_imported_is_named_before_anything_starts(verb):
    result = _run(*verb, POTLUCK_EXTENSIONS="not_there.py")
    assert result.exit_code == 2
    assert result.stderr.startswith("potluck: POTLUCK_EXTENSIONS: 'not_there.py' cannot be imported (FileNotFoundError")
    assert result.stderr.count("\n") == 1


def test_with_json_a_failure_is_an_object_too():
    result = _run("train", "none.py", "--json")
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "error": "none.py: no such file; give the Python file that defines your job",
        "exit_code": 2,
    }


def test_an_error_nobody_foresaw_gets_one_line_and_its_traceback_a_file(monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("potluck.cli.verbs.train.load_job", broken)
    result = _run("train", "job.py")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("potluck: unexpected ZeroDivisionError: surprise; the traceback is in ")
    file = Path(line.partition(" is in ")[2].partition(" (")[0])
    assert "in broken" in file.read_text()
    file.unlink()


def test_debugging_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("POTLUCK_DEBUG", "1")
    result = _run("train", "none.py")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def _ledger(folder: Path, *rounds: list[int]) -> None:
    """A run of one epoch of four samples in two rounds, with the given samples."""
    facts = {"version": 1, "samples": 4, "batch_size": 2, "epochs": 1, "rounds": None, "seed": 0}
    (folder / "run.json").write_text(json.dumps(facts))
    lines = [
        {"round": i, "epoch": 0, "term": 1, "samples": ids, "loss": (1.0).hex(), "digest": ""}
        for i, ids in enumerate(rounds)
    ]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _order() -> list[int]:
    from potluck.datasets.sample_order import SampleOrder

    order = SampleOrder(count=4, batch_size=2, seed=0, epochs=1)
    return [int(i) for round in range(2) for i in order.round(round).ids]


def test_verify_run_says_that_every_sample_was_used_once(tmp_path):
    ids = _order()
    _ledger(tmp_path, ids[:2], ids[2:])
    result = _run("verify", "--run", str(tmp_path))
    assert result.exit_code == 0
    assert "every sample of every epoch was used exactly once" in result.stdout
    judged = json.loads(_run("verify", "--run", str(tmp_path), "--json").stdout)
    assert (judged["exact"], judged["finished"], judged["lost"], judged["doubled"]) == (True, True, 0, 0)


def test_verify_run_of_an_unfinished_run_says_so(tmp_path):
    _ledger(tmp_path, _order()[:2])
    result = _run("verify", "--run", str(tmp_path))
    assert result.exit_code == 0
    assert "has not finished" in result.stdout


def test_verify_run_names_a_sample_used_twice_and_exits_1(tmp_path):
    ids = _order()
    _ledger(tmp_path, ids[:2], [ids[2], ids[0]])
    result = _run("verify", "--run", str(tmp_path))
    assert result.exit_code == 1
    assert f"sample {ids[0]} was used more than once" in result.stdout
    assert f"sample {ids[3]} was never used" in result.stdout


def test_the_command_to_go_on_keeps_what_was_given():
    given = ["train", "my job.py", "--run-dir", "old", "--local", "1,1", "--resume"]
    assert resume_command(given, Path("new")) == "potluck train 'my job.py' --local 1,1 --resume --run-dir new"
    assert (
        resume_command(["train", "j.py", "--run-dir=old"], Path("new")) == "potluck train j.py --resume --run-dir new"
    )


def test_the_command_to_go_on_with_a_demo_is_one_that_there_is():
    line = resume_command(train_command("1,0.5", as_json=False), Path("run"))
    assert re.fullmatch(r"potluck train \S*demo_job\.py --local 1,0\.5 --resume --run-dir run", line)


@pytest.mark.parametrize(
    ("host", "name"),
    [("pi.local", "pi"), ("Bob's Mac", "Bob-s-Mac"), ("", "device"), ("coordinator", "device"), ("x" * 70, "x" * 64)],
)
def test_a_device_is_named_after_its_host(host, name):
    assert default_name(host) == name


def test_devices_on_this_machine_are_counted_however_they_were_started():
    ours = [
        ["python3", "-m", "potluck", "join", "10.0.0.1:7117"],
        ["/usr/bin/python3", "/home/a/.venv/bin/potluck", "join", "10.0.0.1:7117"],
        ["python3.12", "-W", "ignore", "-m", "potluck", "join", "10.0.0.1:7117"],
    ]
    others = [[], ["potluck"], ["potluck", "train", "join.py"], ["vi", "potluck", "join.py"], ["sshd", "join"]]
    assert count_devices([*ours, *others]) == 3


@pytest.mark.parametrize("before", [["timeout", "600"], ["sudo", "-E"], ["uv", "run"], ["ssh", "pi"], ["strace", "-f"]])
def test_what_only_began_a_device_is_none(before):
    assert count_devices([[*before, ".venv/bin/potluck", "join", "10.0.0.1:7117"]]) == 0
