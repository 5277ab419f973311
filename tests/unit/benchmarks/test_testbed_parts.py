"""The parts of a testbed that need no testbed: what follows from a fleet, refusals, the cgroups of other machines."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.testbed import Testbed, TestbedError, TestbedMissing, check_machine
from benchmarks.testbed import __main__ as command
from benchmarks.testbed import network as network_module
from benchmarks.testbed.bed import _has_capabilities
from benchmarks.testbed.cgroups import CgroupsV2, find, quota_us
from benchmarks.testbed.leftovers import base_name, is_left_over
from benchmarks.testbed.topology import topology
from potluck.errors import InputError
from potluck.settings.fleet_file import read_fleet
from potluck.types import COORDINATOR, Fleet, LinkSpec
from tests.process.testbed_programs import FLEETS, MBIT, MISSING, fleet_of


class TestRefusals:
    """One line that says what to do."""

    def test_what_is_missing_is_named_with_the_way_to_get_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        with pytest.raises(TestbedMissing, match="needs the cgroup controller 'cpu'"):
            find(tmp_path)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(network_module, "_SYSTEM_FOLDERS", str(tmp_path))
        with pytest.raises(TestbedMissing, match="apt-get install iproute2"):
            Testbed(fleet_of(0.2))
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(TestbedMissing, match="needs root"):
            Testbed(fleet_of(0.2))

    def test_a_fleet_that_cannot_be_built_is_refused(self):
        with pytest.raises(InputError, match=r"want 1000\.00 cores and this machine has"):
            Testbed(fleet_of(1000))
        with pytest.raises(InputError, match="no latency; leave it out"):
            topology(Fleet(devices=fleet_of(1).devices, latency_s=0.1))
        with pytest.raises(InputError, match="medium 'shared' cannot be built"):
            topology(Fleet(devices=fleet_of(1).devices, medium="shared"))
        triangle = (LinkSpec(between=("d0", "d1"), bandwidth_bytes_s=MBIT),)
        with pytest.raises(InputError, match="do not make two rooms"):
            topology(Fleet(devices=fleet_of(1, 1, 1).devices, bandwidth_bytes_s=10 * MBIT, links=triangle))

    @pytest.mark.parametrize(
        ("top", "speed", "why"),
        [
            ("", 1000, "its devices want 1000.00 cores"),
            ("latency = '1ms'", 0.1, "a testbed adds no latency"),
            ("", 0.0001, "device a has speed 0.0001; a testbed gives at least 0.001 cores"),
        ],
    )
    def test_a_fleet_that_cannot_be_built_is_named_by_its_file(self, tmp_path: Path, top: str, speed: float, why: str):
        path = tmp_path / "lab.toml"
        path.write_text(f"{top}\n[[device]]\nname = 'a'\nspeed = {speed}\n")
        with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {why}')}"):
            Testbed(path)

    @pytest.mark.parametrize(
        ("started", "shown"),
        [("benchmarks.testbed.__main__", "benchmarks.testbed …"), ("some.module", "some.module …"), (None, "…")],
    )
    def test_the_way_to_root_names_this_python(self, monkeypatch: pytest.MonkeyPatch, started: str | None, shown: str):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", started and ModuleSpec(started, None))
        with pytest.raises(TestbedMissing) as caught:
            check_machine()
        assert str(caught.value).endswith(f": run it with sudo {shlex.quote(sys.executable)} -m {shown}")

    @pytest.mark.root
    @pytest.mark.skipif(bool(MISSING), reason=MISSING)
    def test_a_device_that_is_not_there_is_named(self):
        with pytest.raises(TestbedError, match="no device 'd7'; it has coordinator, d0"):
            Testbed(fleet_of(0.2)).set_quota("d7", 1)

    def test_root_of_a_container_is_not_enough(self):
        assert _has_capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n")
        assert not _has_capabilities("Name:\tx\nCapEff:\t00000000a80425fb\n"), "as Docker starts it"


class TestCommand:
    """`python -m benchmarks.testbed`, as far as it goes without a testbed."""

    @pytest.mark.parametrize(("fleet", "code"), [("", 2), ("[[device]]\nname = 'a'\nspeed = 0.1\n", 1)])
    def test_what_is_refused_leaves_no_folder(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fleet: str, code: int
    ):
        path = tmp_path / "lab.toml"
        path.write_text(fleet)
        monkeypatch.setattr(command, "ended_by_signals", lambda: None)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        done = CliRunner().invoke(command.main, [str(path), "--", "train", "nowhere.py"])
        assert (done.exit_code, list(tmp_path.iterdir())) == (code, [path])

    def test_a_file_in_place_of_the_folder_for_logs_is_refused_first(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        monkeypatch.setattr(command, "ended_by_signals", lambda: None)
        file = tmp_path / "file"
        file.touch()
        fleet = "benchmarks/fleets/lab-100.toml"
        done = CliRunner().invoke(command.main, ["--logs", str(file), fleet, "--", "train", "job.py"])
        assert done.exit_code == 2
        assert done.output == f"testbed: --logs {file}: File exists; name a folder that can be written\n"

    def test_help_shows_what_to_type(self):
        said = CliRunner().invoke(command.main, ["--help"]).output
        start = "  sudo .venv/bin/python -m benchmarks.testbed "
        assert f"{start}benchmarks/fleets/lab-100.toml -- train examples/digits_cnn.py\n" in said
        assert f"{start}--clean\n" in said
        words = " ".join(said.split())
        assert "It needs root" in words
        assert "VERB is a verb of potluck" in words
        assert "come after `--`" in words


class TestPureParts:
    """What follows from a fleet, and the cgroups that this machine may not have."""

    @pytest.mark.parametrize(
        ("cores", "quota"),
        [(0.25, (2500, 10_000)), (0.08, (1000, 12_500)), (0.001, (1000, 1_000_000)), (2, (20_000, 10_000))],
    )
    def test_a_quota_has_the_usual_period_unless_it_would_be_too_small_for_the_kernel(self, cores, quota):
        assert quota_us(cores) == quota

    @pytest.mark.parametrize("cores", [0, 0.0005, float("nan"), -1])
    def test_a_quota_of_next_to_nothing_is_refused(self, cores):
        with pytest.raises(TestbedError, match="give at least"):
            quota_us(cores)

    def test_a_slow_device_has_a_slow_line_and_needs_no_room(self):
        slow = [LinkSpec(between=("d2", other), bandwidth_bytes_s=MBIT) for other in ("d0", "d1", COORDINATOR)]
        found = topology(Fleet(devices=fleet_of(1, 1, 1).devices, bandwidth_bytes_s=10 * MBIT, links=tuple(slow)))
        assert found.lines == {COORDINATOR: None, "d0": 10 * MBIT, "d1": 10 * MBIT, "d2": MBIT}
        assert len(found.rooms) == 1

    def test_every_fleet_that_comes_along_can_be_built_on_two_cores(self):
        assert len(list(FLEETS.glob("*.toml"))) == 8
        for path in FLEETS.glob("*.toml"):
            fleet = read_fleet(path)
            assert sum(device.speed for device in fleet.devices) < 2, path
            found = topology(fleet)
            rate = (1000 if path.stem == "rooms" else int(path.stem.split("-")[1])) * MBIT
            assert set(found.lines.values()) == {None, rate}
            assert found.trunk == (100 * MBIT if path.stem == "rooms" else None)

    def test_only_testbeds_of_dead_owners_are_left_over(self):
        mine = base_name("bed")
        assert not is_left_over(mine)
        assert not is_left_over("somebody-elses")
        assert is_left_over(mine.replace(f"-{os.getpid()}-", f"-{2**22 + 1}-"))
        process, started = mine.split(".")[0].removeprefix("potluck-").split("-")
        assert is_left_over(f"potluck-{process}-{int(started) + 1}.bed.d0"), "the number was given to another process"

    def test_the_unified_hierarchy_gets_the_same_limits_in_its_own_words(self, tmp_path: Path):
        (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids")
        groups = find(tmp_path)
        assert groups.writable()
        assert isinstance(groups, CgroupsV2)
        groups.make("bed", ["d0"])
        groups.set_cores("bed/d0", 0.08)
        groups.set_memory("bed/d0", 4096)
        groups.prefer("bed/d0")
        inside = tmp_path / "bed" / "d0"
        assert (tmp_path / "bed" / "cgroup.subtree_control").read_text() == "+cpu +memory"
        assert (inside / "cpu.max").read_text() == "1000 12500"
        assert (inside / "memory.max").read_text() == "4096"
        assert (inside / "cpu.weight").read_text() == "2000"
        groups.set_cores("bed/d0", None)
        assert (inside / "cpu.max").read_text() == "max 10000"
        (inside / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\nnr_throttled 3\nthrottled_usec 250000\n")
        (inside / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
        assert (groups.cpu_seconds("bed/d0"), groups.throttled_seconds("bed/d0")) == (1.5, 0.25)
        assert groups.oom_kills("bed/d0") == 1
        assert groups.doors("bed/d0") == [inside / "cgroup.procs"]
