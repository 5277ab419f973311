"""Training around a parameter server with real processes: each device on data of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from potluck.metrics.records import RECORDS, PaceRecord, PushRecord, read
from potluck.paramserver.applied_pushes import audit
from tests.process.agents import ROOT, until
from tests.process.sync_site import PATIENT_S, pushed_by, site


def test_each_trains_on_what_it_owns_and_the_model_knows_it_all(tmp_path: Path) -> None:
    with site(tmp_path, epochs=60) as it:  # on a fast machine a fifth of these are over after three pushes of each
        train = it.train("ours:0.2s", 3)
        judges = ["--data", "digits:eval=c.npz"]  # by digits that it does not train on
        joined = [it.join("a", *judges), it.join("b", "--speed", "0.5"), it.join("c", "--speed", "0.25")]
        assert train.wait(PATIENT_S) == 0
        assert [process.wait(30) for process in joined] == [0, 0, 0]
        assert audit(it.pushes) == []
        assert it.accuracy() > 0.6  # none of the shards alone has more than four of the ten digits
        records = list(read(it.run / RECORDS))
        pushes = [r for r in records if isinstance(r, PushRecord)]
        assert {r.device for r in pushes} == {"a", "b", "c"}
        assert all(r.reason for r in records if isinstance(r, PushRecord | PaceRecord))
        assert sum(r.samples for r in pushes) >= 60 * 1500
        assert len(pushes) == len(it.pushes)
        found = {r.device: r for r in pushes if r.held_out_loss is not None}
        assert list(found) == ["a"]
        assert found["a"].held_out_samples == len(np.load(tmp_path / "c.npz")["label"])
        losses = [r.held_out_loss for r in pushes if r.held_out_loss is not None]
        assert min(losses) < 0.8 * losses[0]  # others teach it what it has never seen
        judged = it.start("verify", "--run", str(it.run))
        assert judged.wait(PATIENT_S) == 0
        assert f"{len(pushes)} pushes, 0 of them left out" in it.log


def test_who_lacks_the_data_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    with site(tmp_path, epochs=2) as it:
        np.savez(tmp_path / "odd.npz", input=np.zeros((8, 3), np.float32), label=np.zeros(8, np.int64))
        train = it.train("local:8", 3)
        a, b, c = it.join("a"), it.join("b", data="other=b.npz"), it.join("c", data="digits=odd.npz")
        assert train.wait(PATIENT_S) == 0
        assert a.wait(30) == 0
        assert (b.wait(30), c.wait(30)) == (2, 2)
        assert {entry.push.worker for entry in it.pushes} == {"a"}
        told = {i.device: i.what for i in it.incidents()}
        assert told["b"] == "b has no data set 'digits' (it has: other); join with --data digits=PATH"
        assert "samples of shape (3,) each, and the job's are (1, 8, 8)" in told["c"]


def test_who_calls_labels_by_other_names_is_refused_with_both_lists(tmp_path: Path) -> None:
    for device, names in {"a": ("one", "zero"), "b": ("two", "zero")}.items():
        for name in names:
            (tmp_path / device / name).mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / device / name / "1.png")
    with site(tmp_path, epochs=40) as it:
        train = it.train("local:8", 2)
        joined = [it.join(name, data=f"digits={name}") for name in "ab"]
        assert train.wait(PATIENT_S) == 0
        assert sorted(process.wait(30) for process in joined) == [0, 2]
        [refused] = [i for i in it.incidents() if i.kind == "left"]
        [trained] = {entry.push.worker for entry in it.pushes}
        has = {"a": "one, zero", "b": "two, zero"}
        assert f"{refused.device} has folders {has[refused.device or '']}, and {trained} has {has[trained]}," in it.log
        assert refused.device != trained


def test_a_worker_is_killed_and_comes_back_as_another(tmp_path: Path) -> None:
    with site(tmp_path, epochs=400) as it:
        train = it.train("asp", 2)
        a, b = it.join("a", "--speed", "0.3"), it.join("b", "--speed", "0.3")
        until(lambda: pushed_by(it, "b") > 5, "a few pushes of b", PATIENT_S)
        b.kill()
        until(lambda: any(i.kind == "lost" and i.device == "b" for i in it.incidents()), "the loss of b", PATIENT_S)
        before = pushed_by(it, "a")
        until(lambda: pushed_by(it, "a") > before + 5, "pushes of a without b", PATIENT_S)
        it.join("b")
        it.join("c")
        until(lambda: pushed_by(it, "c") > 5, "pushes of one that came late", PATIENT_S)
        until(
            lambda: max(e.push.incarnation for e in it.pushes if e.push.worker == "b") == 2, "b as another", PATIENT_S
        )
        a.send_signal(signal.SIGINT)
        assert a.wait(PATIENT_S) == 0
        until(lambda: any(i.kind == "left" and i.device == "a" for i in it.incidents()), "that a left", PATIENT_S)
        train.send_signal(signal.SIGINT)
        assert train.wait(PATIENT_S) == 0
        assert audit(it.pushes) == []


def test_a_rehearsal_kills_one_and_says_how_that_was_survived(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text('[[fault]]\ndevice = "b"\ndo = "kill"\nafter_round = 20\n')
    with site(tmp_path, epochs=6) as it:
        train = it.train("local:4", 2, "--chaos", "script.toml")
        a, b = it.join("a", "--chaos"), it.join("b", "--chaos")
        assert train.wait(PATIENT_S) == 0
        assert a.wait(30) == 0
        assert b.wait(30) == -signal.SIGKILL
        assert any(i.kind == "lost" and i.device == "b" for i in it.incidents())
        [row] = [line for line in (it.run / "chaos.md").read_text().splitlines() if line.startswith("| kill b | 20 |")]
        assert "the others go on; what it pushed counts" in row


@pytest.mark.parametrize(
    "sync", ["asp", *(pytest.param(name, marks=pytest.mark.full) for name in ("bsp", "ours:0.2s"))]
)
def test_the_server_is_killed_and_no_push_is_lost_or_counted_twice(tmp_path: Path, sync: str) -> None:
    with site(tmp_path, epochs=400) as it:
        train = it.train(sync, 2)
        joined = [it.join("a", "--speed", "0.3"), it.join("b", "--speed", "0.3")]
        until(lambda: pushed_by(it, "a") > 9 and pushed_by(it, "b") > 9, "a few pushes", PATIENT_S)
        train.send_signal(signal.SIGKILL)
        train.wait(PATIENT_S)
        durable = json.loads(next((it.run / "server" / "checkpoints").glob("round-*/manifest.json")).read_text())
        version = durable["position"]["round"]
        kept = it.pushes[:version]
        assert len(kept) == version
        train = it.train(sync, 2, "--resume")
        until(lambda: len(it.pushes) > version + 20, "pushes after the restart", PATIENT_S)
        train.send_signal(signal.SIGINT)
        assert train.wait(PATIENT_S) == 0
        assert [process.wait(30) for process in joined] == [0, 0]
        assert audit(it.pushes) == []
        assert it.pushes[:version] == kept
        assert {e.push.incarnation for e in it.pushes} == {1}  # they went on as who they were


@pytest.mark.full
def test_who_never_pushes_is_dropped_by_name_and_nobody_waits_for_it_for_ever(tmp_path: Path) -> None:
    with site(tmp_path, epochs=2) as it:
        coordinator = it.train("bsp", 3, "--timeout", "15s")
        it.join("a")
        it.join("b")
        with (it.folder / "log").open("ab") as log:
            words = [f"127.0.0.1:{it.port}", "c", "digits=c.npz"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            silent = subprocess.Popen(
                [sys.executable, "-m", "tests.process.silent_agent", *words], cwd=it.folder, env=environment,
                stdout=log, stderr=log,
            )  # fmt: skip
            it.processes.append(silent)
        assert coordinator.wait(PATIENT_S) == 0, it.log
        refused = [i for i in it.incidents() if "pushed nothing for" in i.what]
        assert [i.device for i in refused] == ["c"]
        assert silent.wait(PATIENT_S) != 0  # it is told, and does not come back by itself
        assert pushed_by(it, "c") == 0
        assert audit(it.pushes) == []
