"""What users say of devices that fall silent, are lost, come back or slow down arrives where it acts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.cli.verbs.train import lasting
from potluck.coordinator.contexts import RunContext, TermContext
from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.fleet.live_fleet import InterruptedRun, LiveFleet
from potluck.coordinator.fleet.roster import Roster
from potluck.coordinator.options import Options
from potluck.coordinator.rounds.announcer import Announcer
from potluck.coordinator.rounds.round_loop import RoundLoop
from potluck.coordinator.training import _start
from potluck.recover.copies import CopyRules
from potluck.settings.address import Ports
from potluck.settings.verb_settings import TrainSettings, settle
from potluck.types import CopyLine
from tests.unit.coordinator.fake_server import roster_of
from tests.unit.coordinator.small_job import plan_of, prepared
from tests.unit.memory_link import memory_links
from tests.unit.plan.instances import a_model, a_profile

PLAN = plan_of(("d0",), ("d1",))
PORTS = Ports(52100, 52199)
FLAGS = {
    "silence": "6s", "return_seconds": "2min", "between_losses": "10h", "copy_part": "0.3",
    "checkpoint_seconds": "30min", "replan_gain": "0.2", "link_ports": str(PORTS),
}  # fmt: skip


def begun(path: Path, options: Options) -> TermContext:
    """A run that starts by these options."""
    here, *_ = memory_links(["coordinator", "d0", "d1"])
    profile = a_profile(1, a_model(1, 3), [1.0, 0.5], bandwidth=1e7)
    nothing: dict[str, Any] = dict.fromkeys(("heard", "observed", "due", "idle"), lambda *given: None)
    live, changes = SimpleNamespace(roster=SimpleNamespace(), link=here), SimpleNamespace(profile=profile, **nothing)
    given = replace(options, run_dir=path)
    start, _ = _start(cast(Any, live), prepared(), PLAN, given, "given", cast(Any, changes), None)
    return start


def run_of(path: Path, **flags: str) -> RunContext:
    return begun(path, Options(**lasting(settle(TrainSettings, flags, {})))).run


def test_what_nobody_sets_is_what_a_run_from_python_has() -> None:
    usual = Options()
    assert lasting(TrainSettings()) == {key: getattr(usual, key) for key in lasting(TrainSettings())}


def test_what_is_set_is_what_the_run_has(tmp_path: Path) -> None:
    assert lasting(settle(TrainSettings, FLAGS, {})) == {
        "silence_s": 6.0, "return_s": 120.0, "copies": CopyRules(36_000.0, 0.3), "checkpoint_s": 1800.0,
        "replan_gain": 0.2, "link_ports": PORTS,
    }  # fmt: skip
    run = run_of(tmp_path / "run", **FLAGS)
    assert (run.return_s, run.checkpoint_s, run.copy_rules) == (120.0, 1800.0, CopyRules(36_000.0, 0.3))
    assert set(run.copy_lines.values()) == {CopyLine(1e7, shared=False, part=0.3)}


def test_a_device_may_be_silent_as_long_as_the_user_says() -> None:
    for patience_s in (2.0, 9.0):
        roster, server = roster_of(silence_s=patience_s)
        server.arrives(1, "a")
        roster.gather(["a"], 20.0, lambda text: None)
        roster.watch(["a"])
        assert server.watches[1].gone(patience_s - 0.1) is None
        assert server.watches[1].gone(patience_s + 0.1) is not None


def test_a_fleet_listens_and_waits_as_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def back(roster: Roster, names: Iterable[str], run: str, timeout_s: float, say: object) -> bool:
        waited.append(timeout_s)
        return True

    monkeypatch.setattr(Roster, "gather_back", back)
    options = Options(joined=1, **lasting(settle(TrainSettings, FLAGS, {})))
    with LiveFleet(None, options, InterruptedRun("run", ("d0",))) as live:
        assert waited == [120.0]
        assert int(live.link.address.rpartition(":")[2]) in range(PORTS.first, PORTS.last + 1)
        assert live.roster._silence_s == 6.0


def test_a_process_here_may_take_as_long_to_start_as_the_user_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(Roster, "gather", lambda roster, wanted, timeout_s, say: waited.append(timeout_s))
    for timeout_s in (5.0, 600.0):
        with LiveFleet(None, Options(join_timeout_s=timeout_s)):
            pass
    assert waited == [120.0, 600.0]


@pytest.mark.parametrize(("flags", "patience_s"), [({}, 60.0), ({"return_seconds": "2min"}, 150.0)])
def test_devices_that_this_side_did_not_hear_have_longer_to_come_back(
    tmp_path: Path, flags: dict[str, str], patience_s: float
) -> None:
    it = SimpleNamespace(
        state=SimpleNamespace(phase="asking", waiting=("d0",), here=()), _run=run_of(tmp_path / "run", **flags)
    )
    assert Coordinator._patience_s(cast(Any, it)) == patience_s


def test_a_checkpoint_is_made_after_as_long_as_the_user_says(tmp_path: Path) -> None:
    start = begun(tmp_path / "run", Options(**lasting(settle(TrainSettings, {"checkpoint_seconds": "10min"}, {}))))
    loop = RoundLoop(start, cast(Any, None), Announcer(start.run))
    loop._saved_s = time.monotonic() - 590.0
    assert not loop._save_after(0, due=False)
    loop._saved_s = time.monotonic() - 610.0
    assert loop._save_after(0, due=False)


def test_copies_are_as_far_apart_as_losses_say(tmp_path: Path) -> None:
    start = begun(tmp_path / "run", Options(**lasting(settle(TrainSettings, FLAGS, {}))))
    copying = RoundLoop(start, cast(Any, None), Announcer(start.run))._copying
    copying.took_s = 2.0
    assert copying.period_s == pytest.approx((2 * 0.3 * 2.0 * 36_000.0) ** 0.5)
