"""Profiles on disk: what comes back, and what a damaged or foreign file does."""

import os
from pathlib import Path

import msgspec
import pytest

from potluck.errors import InputError
from potluck.profile.network import Probing
from potluck.profile.refresh import cell_to_retime, links_changed, refresh
from potluck.profile.store import DeviceKey, Network, NetworkKey, Store, default_dir, load, save
from potluck.profile.synthetic import synthetic
from potluck.types import (
    COORDINATOR,
    BlockProfile,
    DeviceProfile,
    DeviceSpec,
    Fleet,
    LinkProfile,
    LinkSpec,
    Profile,
    Timing,
)

DIGEST = "ab" * 32


def device(name: str = "d0", *steps_s: float, measured: bool = True) -> DeviceProfile:
    blocks = tuple(
        BlockProfile(
            timings=(
                Timing(rows=8, forward_s=s / 3, backward_s=2 * s / 3, kept_bytes=9, working_bytes=1, measured=measured),
            ),
            update_s=0.01,
        )
        for s in steps_s or (0.3, 0.9)
    )
    return DeviceProfile(device=DeviceSpec(name=name), blocks=blocks, message_s=1e-4, copy_bytes_s=1e9, call_s=1e-4)


def key(**changes) -> DeviceKey:
    plain = DeviceKey(program=DIGEST, device=DeviceSpec(name="d0"), host="pi", torch_version="2.13", rows=(8, 4))
    return msgspec.structs.replace(plain, **changes)


def test_what_was_kept_comes_back(tmp_path):
    store = Store(tmp_path / "deep" / "cache")
    assert store.device(key()) is None
    store.keep(key(), device())
    assert store.device(key()) == device()
    network = Network(links=(LinkProfile(source="a", target="b", bandwidth_bytes_s=1e6),), medium="half", commit_s=0.01)
    links = NetworkKey(devices=(("a", "pi"), ("b", "pi")), carrier="zmq", bandwidth_bytes_s=None)
    store.keep(links, network)
    assert store.network(links) == network
    assert not list(store.folder.glob(".*"))  # nothing half-written is left


@pytest.mark.parametrize(
    "changes",
    [
        {"program": "cd" * 32},
        {"device": DeviceSpec(name="d0", speed=0.5)},
        {"device": DeviceSpec(name="d0", threads=4)},
        {"device": DeviceSpec(name="d1")},
        {"host": "another pi"},
        {"torch_version": "2.12"},
        {"rows": (16, 8)},
    ],
)
def test_a_profile_holds_only_for_what_it_was_measured_on(tmp_path, changes):
    store = Store(tmp_path)
    store.keep(key(), device())
    assert store.device(key(**changes)) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[]", b'{"format": 2}'])
def test_a_damaged_file_is_measured_anew_with_a_note(tmp_path, damage):
    notes: list[str] = []
    store = Store(tmp_path, notes.append)
    store.keep(key(), device())
    store.path(key()).write_bytes(damage)
    assert store.device(key()) is None
    assert len(notes) == 1
    assert str(store.path(key())) in notes[0]
    store.keep(key(), device())
    assert store.device(key()) == device()


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path):
    notes: list[str] = []
    (tmp_path / "file").write_text("")
    assert Store(tmp_path / "file", notes.append).keep(key(), device()) is None
    assert "cannot be kept" in notes[0]


def test_the_folder_follows_xdg():
    assert str(default_dir({"XDG_CACHE_HOME": "/elsewhere"})) == "/elsewhere/potluck/profiles"
    assert str(default_dir({"XDG_CACHE_HOME": "relative"})).endswith("/.cache/potluck/profiles")


def test_a_saved_profile_comes_back_for_its_own_model_only(tmp_path):
    profile = Profile(program=DIGEST, devices=(device(),))
    save(profile, tmp_path / "p.json")
    assert load(tmp_path / "p.json", DIGEST) == profile
    with pytest.raises(InputError, match=r"p\.json: a profile of another model \(abababababab, this job's is cdcdcdcd"):
        load(tmp_path / "p.json", "cd" * 32)


@pytest.mark.parametrize("content", ["", "{}", '{"potluck_profile": 1, "profile": {}}', '{"potluck_profile": 7}'])
def test_a_file_that_is_no_profile_is_named(tmp_path, content):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(InputError, match=r"p\.json: not a profile"):
        load(tmp_path / "p.json")
    with pytest.raises(InputError, match=r"none\.json: cannot be read"):
        load(tmp_path / "none.json")


def test_a_profile_whose_devices_differ_in_blocks_is_refused(tmp_path):
    save(Profile(program=DIGEST, devices=(device("a", 0.1), device("b", 0.1, 0.2))), tmp_path / "p.json")
    with pytest.raises(InputError, match=r"p\.json: devices\[1\]\.blocks: 2 of them cannot be, as the model has 1"):
        load(tmp_path / "p.json")


def changed(old: str, new: str) -> bytes:
    """A saved profile of two devices with a number replaced."""
    links = (LinkProfile(source="a", target="b", bandwidth_bytes_s=1e6, latency_s=0.25),)
    profile = Profile(program=DIGEST, devices=(device("a"), device("b")), links=links, commit_s=0.125)
    text = msgspec.json.encode({"potluck_profile": 1, "profile": profile}).decode()
    assert old in text
    return text.replace(old, new, 1).encode()


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"rows":8', '"rows":0', "devices[0].blocks[0].timings[0].rows"),
        ('"rows":8', '"rows":-8', "devices[0].blocks[0].timings[0].rows"),
        ('"forward_s":0.0999', '"forward_s":-0.0999', "devices[0].blocks[0].timings[0].forward_s"),
        ('"commit_s":0.125', '"commit_s":1e300', "commit_s"),
        ('"commit_s":0.125', '"commit_s":1e999', "not a profile"),
        ('"kept_bytes":9', '"kept_bytes":-9', "devices[0].blocks[0].timings[0].kept_bytes"),
        ('"working_bytes":1', '"working_bytes":2000000000000000000', "devices[0].blocks[0].timings[0].working_bytes"),
        ('"update_s":0.01', '"update_s":-1', "devices[0].blocks[0].update_s"),
        ('"resident":1.0', '"resident":0', "devices[0].blocks[0].resident"),
        ('"copy_bytes_s":1000000000.0', '"copy_bytes_s":0', "devices[0].copy_bytes_s"),
        ('"code_bytes":0', '"code_bytes":-1', "devices[0].code_bytes"),
        ('"call_s":0.0001', '"call_s":-1', "devices[0].call_s"),
        ('"name":"b"', '"name":"a"', "devices[1].device.name"),
        ('"source":"a"', '"source":"c"', "links[0].source"),
        ('"source":"a"', '"source":"b"', "links[0].target"),
        ('"bandwidth_bytes_s":1000000.0', '"bandwidth_bytes_s":5e-324', "links[0].bandwidth_bytes_s"),
        ('"latency_s":0.25', '"latency_s":-0.25', "links[0].latency_s"),
        ('"commit_s":0.125', '"commit_s":-1', "commit_s"),
    ],
)
def test_a_number_that_cannot_be_is_named(tmp_path, old, new, key):
    path = tmp_path / "p.json"
    path.write_bytes(changed(old, new))
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {key}")


def test_rows_ascend_and_blocks_are_as_many_as_the_model_has(tmp_path):
    cells = [Timing(rows=r, forward_s=0.1, backward_s=0.1, kept_bytes=0, working_bytes=0) for r in (8, 4)]
    down = DeviceProfile(device=DeviceSpec(name="a"), blocks=(BlockProfile(timings=tuple(cells)),))
    save(Profile(program=DIGEST, devices=(down,)), tmp_path / "down.json")
    with pytest.raises(InputError, match="timings\\[1\\]\\.rows: 4 cannot be, as rows are above 8, ascending"):
        load(tmp_path / "down.json")
    save(Profile(program=DIGEST, devices=(device("a"),)), tmp_path / "p.json")
    assert load(tmp_path / "p.json", DIGEST, 2)
    with pytest.raises(InputError, match="2 of them cannot be, as the model has 3"):
        load(tmp_path / "p.json", DIGEST, 3)


def test_what_never_ends_or_is_too_large_is_not_read(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="/dev/zero: not a profile \\(it is no regular file\\)"):
        load(Path("/dev/zero"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match="no regular file"):
        load(tmp_path / "fifo")
    monkeypatch.setattr("potluck.profile.store.MAX_FILE_BYTES", 100)
    save(Profile(program=DIGEST, devices=(device("a"),)), tmp_path / "p.json")
    with pytest.raises(InputError, match="more than 100 bytes"):
        load(tmp_path / "p.json")


def test_a_kept_profile_with_impossible_numbers_is_measured_anew(tmp_path):
    notes: list[str] = []
    store = Store(tmp_path, notes.append)
    store.keep(key(), msgspec.structs.replace(device(), message_s=-1.0))
    assert store.device(key()) is None
    assert "message_s: -1 cannot be" in notes[0]
    store.keep(key(), device())
    assert store.device(key(), 2) == device()
    assert store.device(key(), 3) is None


def test_what_cannot_be_dropped_is_said_and_no_failure(tmp_path, monkeypatch):
    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied")

    notes: list[str] = []
    monkeypatch.setattr(Path, "unlink", refuse)
    Store(tmp_path, notes.append).drop(key())
    assert "cannot be removed (Permission denied)" in notes[0]


def test_the_longest_measured_block_is_timed_again():
    assert cell_to_retime(device("d0", 0.1, 0.5, 0.2), 8) == 1
    assert cell_to_retime(device("d0", 0.1, 0.5, measured=False), 8) is None
    assert cell_to_retime(device("d0", 0.1), 16) is None


def timed(*steps_s: float) -> list[Timing]:
    return [Timing(rows=8, forward_s=s / 3, backward_s=2 * s / 3, kept_bytes=0, working_bytes=0) for s in steps_s]


@pytest.mark.parametrize(
    ("again_s", "word"),
    [(0.9, None), (1.03, None), (0.77, None), (1.05, "17% slower than before"), (0.7, "22% faster than before"),
     (2.16, "2.4 times as slow as before (900.0 ms → 2.16 s)"), (0.09, "10.0 times as fast as before")],
)  # fmt: skip
def test_a_profile_more_than_15_percent_off_is_dropped(again_s, word):
    reason = refresh(device(), 1, timed(again_s))
    assert (reason is None) if word is None else (word in (reason or ""))


def test_one_bad_moment_among_three_drops_no_profile():
    assert refresh(device(), 1, timed(220.0, 0.9, 0.92)) is None
    assert "slow" in (refresh(device(), 1, timed(220.0, 1.4, 1.5)) or "")


@pytest.mark.parametrize(
    ("rate", "latency_s", "word"),
    [
        (1e6, 0.01, None), (0.75e6, 0.01, None), (1.3e6, 0.012, None),
        (0.6e6, 0.01, "a → b is 67% slower than before"), (2e6, 0.01, "times as fast as before"),
        (1e6, 0.03, "a → b has another latency (10.0 ms → 30.0 ms)"),
    ],
)  # fmt: skip
def test_links_that_carry_something_else_are_named(rate, latency_s, word):
    links = [LinkProfile(source="a", target="b", bandwidth_bytes_s=1e6, latency_s=0.01)]
    reason = links_changed(links, {("a", "b"): Probing(rate, latency_s, 1.0)}, {})
    assert (reason is None) if word is None else (word in (reason or ""))


def test_links_as_fast_as_the_processor_are_the_same_however_fast_it_was():
    links = [LinkProfile(source="a", target="b", bandwidth_bytes_s=2e9, latency_s=1e-4)]
    assert links_changed(links, {("a", "b"): Probing(5e8, 3e-4, 1.0)}, {}) is None
    assert "slow" in (links_changed(links, {("a", "b"): Probing(1e7, 3e-4, 1.0)}, {}) or "")


def test_devices_one_does_not_have():
    measured = msgspec.structs.replace(device(), device=DeviceSpec(name="here", speed=0.5))
    fleet = Fleet(
        devices=(DeviceSpec(name="fast", speed=2.0), DeviceSpec(name="slow", speed=0.25, memory_bytes=10**9)),
        bandwidth_bytes_s=1e6,
        latency_s=0.002,
        medium="shared",
        links=(LinkSpec(between=("fast", COORDINATOR), bandwidth_bytes_s=5e6),),
    )
    profile = synthetic(measured, fleet, DIGEST)
    step = {d.device.name: d.blocks[0].timings[0].forward_s for d in profile.devices}
    assert step == {"fast": pytest.approx(0.1 / 4), "slow": pytest.approx(0.1 * 2)}
    assert profile.device("slow").device.memory_bytes == 10**9
    assert profile.device("slow").copy_bytes_s == pytest.approx(5e8)
    assert profile.medium == "shared"
    links = {(link.source, link.target): link for link in profile.links}
    assert links[COORDINATOR, "fast"].bandwidth_bytes_s == 5e6
    assert links["fast", "slow"].bandwidth_bytes_s == 1e6
    assert links["fast", "slow"].latency_s == 0.002
    assert not any(link.measured for link in profile.links)
    assert not any(cell.measured for d in profile.devices for b in d.blocks for cell in b.timings)
