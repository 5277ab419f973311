"""A push policy that somebody else has written paces real devices, and every push counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.metrics.records import RECORDS, PushRecord, RunEnded, SyncAdopted, read
from potluck.paramserver.applied_pushes import audit
from potluck.settings.extensions import VARIABLE
from tests.process.sync_site import PATIENT_S, Site, site

FILE = Path(__file__).with_name("every_so_often.py")
POLICY = """
from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_choice import register
from potluck.paramserver.policy_values import plain
from potluck.types import Pace

class Theirs(Policy):
    {}

register("theirs", plain(Theirs))
"""
DEVICES = ("--local", "a=1,b=0.5", "--data", "digits={device}.npz")


def trained(it: Site, sync: str) -> int:
    return it.start("train", "job.py", "--sync", sync, *DEVICES, "--run-dir", str(it.run)).wait(PATIENT_S)


def test_it_decides_when_devices_push_and_each_push_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(FILE))
    with site(tmp_path, epochs=6) as it:
        assert trained(it, "every-so-often:7") == 0, it.log
        assert audit(it.pushes) == []
        assert it.start("verify", "--run", str(it.run)).wait(PATIENT_S) == 0, it.log
        assert {entry.push.worker for entry in it.pushes} == {"a", "b"}
        steps = [entry.push.steps for entry in it.pushes]
        assert sum(count >= 7 for count in steps) >= len(steps) - 2  # but the last one of each
        assert 7 in steps  # more where the push before was still under way
        records = list(read(it.run / RECORDS))
        assert [r.policy for r in records if isinstance(r, SyncAdopted)] == ["every-so-often"]
        assert [r.message for r in records if isinstance(r, RunEnded)] == [""]  # what went well needs no words
        reasons = [r.reason for r in records if isinstance(r, PushRecord) and not r.skipped]
        assert any("after every 7 steps, whatever the others do" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("file", "sync", "why"),
    [
        (str(FILE), "every-so-often:0", "give a number of steps between two pushes, at least 1"),
        (
            "",
            "every-so-often",
            "no such policy; give one of bsp, ssp, asp, local, adacomm, adsp, ours, or name the file ",
        ),
    ],
)
def test_a_wrong_value_or_a_policy_that_was_not_loaded_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, sync: str, why: str
) -> None:
    monkeypatch.setenv(VARIABLE, file)
    with site(tmp_path, epochs=1) as it:
        assert trained(it, sync) == 2
        assert f"--sync '{sync}': {why}" in it.log
        assert not it.pushes


@pytest.mark.parametrize(
    ("answers", "code", "why"),
    [
        ("def may_go(self, worker): return False", 2, "all 2 devices wait (may_go) and nobody is left to wait for"),
        ("def pace(self, worker, now_s): return Pace('seldom', steps=10**9)", 0, ""),
        ("def pace(self, worker, now_s): return Pace('seldom', seconds=1e9)", 0, ""),
    ],
)
def test_a_run_ends_though_its_policy_would_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str, code: int, why: str
) -> None:
    (tmp_path / "theirs.py").write_text(POLICY.format(answers))
    monkeypatch.setenv(VARIABLE, "theirs.py")
    with site(tmp_path, epochs=2) as it:
        assert trained(it, "theirs") == code, it.log
        assert why in it.log
        assert it.pushes
        seldom = [r.reason for r in read(it.run / RECORDS) if isinstance(r, PushRecord)]
        assert code or any("seldom; but after" in reason for reason in seldom)
