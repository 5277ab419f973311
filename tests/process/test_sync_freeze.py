"""Devices and the server of a run stand still for a while, as a laptop does that sleeps, and go on."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from potluck.metrics.records import RECORDS, PushRecord, read
from potluck.paramserver.applied_pushes import audit, missing_and_repeated
from tests.process.agents import until
from tests.process.sync_site import PATIENT_S, Site, pushed_by, site

BRIEF_S = 2.0
LONG_S = 15.0  # whoever is silent for so long is taken for lost, and comes back
pytestmark = pytest.mark.timeout(300)
FREEZES = [BRIEF_S, LONG_S]
MORE = 5  # pushes, before and after


def begin(it: Site) -> tuple[subprocess.Popen[bytes], dict[str, subprocess.Popen[bytes]]]:
    """A run of two devices that both have pushed."""
    train = it.train("ours:0.2s", 2)
    until(lambda: "waiting for 2 more" in it.log, "that devices may join", PATIENT_S)
    joined = {name: it.join(name, "--speed", "0.3") for name in "ab"}
    until(lambda: all(pushed_by(it, name) > MORE for name in joined), "a few pushes of both", PATIENT_S)
    return train, joined


def freeze(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Stands still for so long."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)


def both_go_on(it: Site) -> None:
    before = {name: pushed_by(it, name) for name in "ab"}
    until(lambda: all(pushed_by(it, name) > before[name] + MORE for name in "ab"), "more pushes of both", PATIENT_S)


def end(it: Site, train: subprocess.Popen[bytes], joined: dict[str, subprocess.Popen[bytes]]) -> None:
    """Ends the run in order; then every push is in the ledger once, and was recorded once."""
    train.send_signal(signal.SIGINT)
    assert train.wait(PATIENT_S) == 0
    assert [process.wait(30) for process in joined.values()] == [0, 0]
    assert audit(it.pushes) == []
    assert missing_and_repeated(it.pushes) == (0, 0)
    recorded = sorted(record.version for record in read(it.run / RECORDS) if isinstance(record, PushRecord))
    assert recorded == [entry.version for entry in it.pushes]
    assert "pushes   0 samples lost, 0 counted twice" in it.log


@pytest.mark.full
@pytest.mark.parametrize("seconds", FREEZES)
def test_a_worker_that_stood_still_goes_on_and_the_other_did_not_wait(tmp_path: Path, seconds: float) -> None:
    with site(tmp_path, epochs=2000) as it:
        train, joined = begin(it)
        before = pushed_by(it, "a")
        freeze(joined["b"], seconds)
        assert pushed_by(it, "a") > before
        both_go_on(it)
        assert seconds < LONG_S or any(i.kind == "lost" and i.device == "b" for i in it.incidents())
        end(it, train, joined)


@pytest.mark.full
@pytest.mark.parametrize("seconds", FREEZES)
def test_a_server_that_stood_still_goes_on_with_everybody(tmp_path: Path, seconds: float) -> None:
    with site(tmp_path, epochs=2000) as it:
        train, joined = begin(it)
        freeze(train, seconds)
        both_go_on(it)
        end(it, train, joined)
