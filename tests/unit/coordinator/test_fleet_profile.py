"""When profiles from before are taken, and when measured anew: decided here, with devices that answer by script."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace

import pytest

from potluck.coordinator.fleet.commit_cost import scratch
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, _Profiling
from potluck.profile.network import DevicePair, Probing, Trunk, link_profiles
from potluck.profile.store import Network
from potluck.types import BlockProfile, DeviceProfile, DeviceSpec, LinkProfile, Timing
from potluck.wire.messages import Measured


def cell(seconds: float) -> Timing:
    return Timing(rows=8, forward_s=seconds / 2, backward_s=seconds / 2, kept_bytes=0, working_bytes=0)


KNOWN = DeviceProfile(device=DeviceSpec(name="pi"), blocks=(BlockProfile(timings=(cell(1.0),)),))
LINK = LinkProfile(source="coordinator", target="pi", bandwidth_bytes_s=1e6, latency_s=0.01)


class Scripted(_Profiling):
    """One device, which takes these times for its block, and a link that carries these rates."""

    def __init__(self, times_s: list[float], rates: list[float]) -> None:
        self.times_s, self.rates, self.notes, self.dropped = times_s, rates, list[str](), 0
        self._devices, self._rows = ["pi"], (8,)
        self._keys = {"pi": None}  # type: ignore[dict-item]
        self._settings = MeasuringTime(note=self.notes.append)
        self._store = SimpleNamespace(device=lambda key, blocks: KNOWN, drop=self._drop)  # type: ignore[assignment]
        self._prepared = SimpleNamespace(facts=SimpleNamespace(blocks=[None]))  # type: ignore[assignment]
        self._live = SimpleNamespace(roster=SimpleNamespace(send=lambda device, order: None))  # type: ignore[assignment]

    def _drop(self, key: object) -> None:
        self.dropped += 1

    def _order(self, budget_s: float, again: int | None = None) -> None:  # type: ignore[override]
        assert budget_s >= 0.3

    def _answers(self, devices: object, budget_s: float) -> list[tuple[str, Measured]]:
        return [(device, Measured(again=cell(self.times_s.pop(0)))) for device in list(devices)]  # type: ignore[call-overload]

    def _probe_links(self, seconds: float) -> tuple[dict[DevicePair, Probing], dict[DevicePair, Trunk]]:
        return {("coordinator", "pi"): Probing(self.rates.pop(0), 0.01, 1.0)}, {}


@pytest.mark.parametrize(
    ("times_s", "valid", "asked"),
    [([1.1], True, 1), ([240.0, 1.0, 1.1], True, 3), ([240.0, 2.4, 2.5], False, 3), ([0.5, 0.5, 1.0], False, 3)],
)
def test_one_bad_moment_does_not_drop_a_profile(times_s: list[float], valid: bool, asked: int) -> None:
    it = Scripted([*times_s, *[1.0] * 5], [])
    assert (it._still_valid() == {"pi": KNOWN}) is valid
    assert len(it.times_s) == len(times_s) + 5 - asked
    assert it.dropped == (not valid)
    assert bool(it.notes) is not valid


@pytest.mark.parametrize(("rates", "hold"), [([1e6], True), ([4e5, 1e6], True), ([4e5, 4e5], False)])
def test_links_are_tried_again_and_a_second_look_decides(rates: list[float], hold: bool) -> None:
    it = Scripted([], rates)
    assert it._links_hold(Network(links=(LINK,), medium="full", commit_s=0.01)) is hold
    assert not it.rates
    assert it.notes == ([] if hold else ["links: measured anew, as coordinator → pi is 2.5 times as slow as before"])


def test_the_file_that_a_commit_is_timed_with_is_not_in_the_working_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[object] = []
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir=None: asked.append(dir))
    scratch(tmp_path / "profiles")
    scratch(None)
    assert asked == [tmp_path / "profiles", None]


HOME = {"coordinator": 0, "a": 0, "b": 1, "c": 1}
ACROSS = {(x, y) for x in HOME for y in HOME if HOME[x] != HOME[y]}


class TwoRooms(_Profiling):
    """Two rooms whose links carry 1e7 bytes/s alone, and a part of that with others at the same time."""

    def __init__(self, part: float) -> None:
        self.part, self.met, self.notes, self.shown = part, 0, list[str](), list[tuple[int, int, int]]()
        self._devices, self._store = ["a", "b", "c"], None
        self._keys = dict.fromkeys("abc", SimpleNamespace(host=""))  # type: ignore[arg-type]
        welcome = SimpleNamespace(carrier="tcp", bandwidth_bytes_s=None)
        self._live = SimpleNamespace(roster=SimpleNamespace(welcome=welcome))  # type: ignore[assignment]
        self._settings = MeasuringTime(
            note=self.notes.append, progress=lambda _, done, total: self.shown.append((self.met, done, total))
        )

    def _meet(self) -> None:
        self.met += 1

    def _commit_s(self) -> float:
        return 0.01

    def _probe_round(self, pairs: list[DevicePair], budget_s: float) -> dict[DevicePair, Probing]:
        found = {}
        for way in [way for a, b in pairs for way in ((a, b), (b, a))]:
            alone = len(pairs) == 1
            rate = 1e7 * (1.0 if alone else self.part) if way in ACROSS else 1e8
            found[way] = Probing(rate, 0.01, 2.0 if alone else 1.0)  # a busy moment, of one pair
        return found


@pytest.mark.parametrize(("part", "shared"), [(0.5, True), (0.95, False)])
def test_links_that_slow_each_other_down_share_a_line(part: float, shared: bool) -> None:
    it = TwoRooms(part)
    links = {(link.source, link.target): link for link in it._network().links}
    assert it.met == 3  # tags of one measurement must not meet those of another
    assert {pair for pair, link in links.items() if link.trunk} == (ACROSS if shared else set())
    assert {links[pair].bandwidth_bytes_s for pair in ACROSS} == {1e7 if shared else 1e7 * part}
    assert {links[pair].bandwidth_bytes_s for pair in links.keys() - ACROSS} == {1e8}


def test_the_pair_that_tries_a_shared_line_does_not_decide_the_medium() -> None:
    assert TwoRooms(0.5)._network().medium == "full"


def test_links_are_done_when_shared_lines_have_been_tried() -> None:
    it = TwoRooms(0.5)
    it._probe_links(1.0)
    assert it.shown == [(1, 0, 4), (1, 1, 4), (1, 2, 4), (1, 3, 4), (3, 4, 4)]


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (0.5, 0.5, ""),
        (0.95, 0.95, ""),
        (0.95, 0.5, "shares its line with others than before"),
        (0.5, 0.95, "shares its line with nobody any more"),
    ],
)
def test_links_hold_no_longer_if_others_share_a_line(before: float, now: float, why: str) -> None:
    it = TwoRooms(now)
    known = link_profiles(it._devices, *TwoRooms(before)._probe_links(1.0))
    assert it._links_hold(Network(links=known, medium="full", commit_s=0.01)) is not bool(why)
    assert [note.endswith(why) for note in it.notes] == ([True] if why else [])
