"""Settings: flags over variables over a file over defaults, and whatever is wrong is named."""

import dataclasses
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from potluck.errors import InputError
from potluck.settings.verb_settings import (
    JoinSettings,
    PlanSettings,
    ProfileSettings,
    TrainSettings,
    config_file,
    settle,
)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "potluck.toml"
    path.write_text(text)
    return path


def test_every_setting_has_a_reader_and_a_default():
    for kind in (TrainSettings, JoinSettings):
        assert set(kind.readers()) == {f.name for f in dataclasses.fields(kind)}
        assert settle(kind, {}, {}) == kind()


def test_a_verb_refuses_what_only_another_one_can_be_told(tmp_path):
    for kind in (ProfileSettings, PlanSettings):
        assert set(kind.NOT_HERE) < {f.name for f in dataclasses.fields(kind)}
        with pytest.raises(InputError, match=rf"{kind.TABLE}\.chaos: unknown key"):
            settle(kind, {}, {}, _file(tmp_path, f'[{kind.TABLE}]\nchaos = "script.toml"'))


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(tmp_path):
    file = _file(tmp_path, '[train]\nbandwidth = "1Mbit"\ncarrier = "gloo"\ntimeout = "9s"\n')
    environment = {"POTLUCK_BANDWIDTH": "2Mbit", "POTLUCK_CARRIER": "zmq"}
    got = settle(TrainSettings, {"bandwidth": "4Mbit", "carrier": None}, environment, file)
    assert got.bandwidth == 500_000.0  # the flag's
    assert got.carrier == "zmq"  # the variable's
    assert got.timeout == 9.0  # the file's
    assert got.devices == 0  # the default


def test_a_file_may_use_lists_tables_and_numbers(tmp_path):
    file = _file(
        tmp_path,
        '[train]\nlocal = {desk = 1, pi = 0.25}\nmemory = ["512MB", 1000]\ndevices = 2\nlisten = "127.0.0.1:0"\n'
        'plain_network = "10.0.0.0/8"\njson = true\n[join]\nname = "pi"\nthreads = 2\nspeed = 0.5\n',
    )
    got = settle(TrainSettings, {}, {}, file)
    assert got.local == (("desk", 1.0), ("pi", 0.25))
    assert got.memory == (512_000_000, 1000)
    assert got.plain_network == IPv4Network("10.0.0.0/8")
    assert got.json
    joined = settle(JoinSettings, {}, {}, file)
    assert (joined.name, joined.threads, joined.speed) == ("pi", 2, 0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[train]\nbandwith = '1Mbit'", "train.bandwith: unknown key; did you mean bandwidth?"),
        (
            "[train]\nelephants = 3",
            "train.elephants: unknown key; give one of bandwidth, between_losses, carrier, chaos, checkpoint_seconds, ",
        ),
        ("[trian]\nlocal = '1'", "[trian]: unknown table; did you mean train?"),
        ("[zoo]\nlocal = '1'", "[zoo]: unknown table; give one of join, plan, profile, train"),
        ("bandwidth = '1Mbit'", "bandwidth: a key outside any table"),
        ("[train]\nbandwidth = 100", "train.bandwidth: '100' has no unit"),
        ("[train]\nbandwidth = true", "train.bandwidth: True is a truth value"),
        ("[train]\nbandwidth = '1Mbitt'", "train.bandwidth: '1Mbitt' has the unknown unit 'Mbitt'; did you mean Mbit?"),
        ("[train]\ndevices = -1", "train.devices: -1 does not do; give a whole number, at least 0"),
        ("[train]\ndevices = 1.5", "train.devices: 1.5"),
        ("[train]\nno_local = 'maybe'", "train.no_local: 'maybe' is neither true nor false"),
        ("[train]\ncarrier = 'zqm'", "train.carrier: 'zqm' is not known; did you mean zmq?"),
        ("[train]\nlocal = [1, 2]", "train.local: '1,2': speed 2 cannot be emulated"),
        ("[train]\nplain_network = '10.0.0.1'", "train.plain_network"),
        ("[join]\nspeed = '0.5,0.5'", "join.speed"),
        ("[join]\nmemory = '1 elephant'", "join.memory"),
        ("[train]\nsilence = '0.5s'", "train.silence: '0.5s' does not do; give a duration from 1s to 12s"),
        ("[train]\nsilence = 13", "train.silence: 13 does not do"),
        ("[train]\nreturn_seconds = 'soon'", "train.return_seconds: 'soon'"),
        ("[train]\nbetween_losses = '1 day'", "train.between_losses: '1 day' has the unknown unit"),
        ("[train]\ncopy_part = 1.5", "train.copy_part: 1.5 does not do; give a number above 0 and at most 1"),
        ("[train]\ncopy_part = 'half'", "train.copy_part: 'half' does not do"),
        ("[train]\ncheckpoint_seconds = 0", "train.checkpoint_seconds: '0' leaves no time at all"),
        ("[train]\nreplan_gain = 0", "train.replan_gain: 0 does not do"),
        ("[train]\nlink_ports = '7200-'", "train.link_ports: '7200-' names no ports"),
        ("[join]\nlink_ports = '7219-7200'", "join.link_ports: '7219-7200' holds no ports"),
        (
            "[join]\nlink_ports = 70000",
            "join.link_ports: '70000' holds no ports; give the first and the last, from 1 to",
        ),
        ("[profile]\nsilence = '3s'", "profile.silence: unknown key"),
        ("[train\n", "not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_and_key(tmp_path, text, expected):
    file = _file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        settle(TrainSettings, {}, {}, file)  # a wrong [join] too: devices started here will read it
    assert str(caught.value).startswith(f"{file}: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml: cannot be read"):
        settle(TrainSettings, {}, {}, tmp_path / "none.toml")


def test_an_unknown_variable_is_an_error_and_foreign_ones_are_not():
    settle(TrainSettings, {}, {"PATH": "x", "POTLUCK_DEBUG": "1", "POTLUCK_CONFIG": "x", "POTLUCK_NAME": "pi"})
    with pytest.raises(InputError, match=r"POTLUCK_BANDWITH: unknown variable, .* did you mean POTLUCK_BANDWIDTH\?"):
        settle(TrainSettings, {}, {"POTLUCK_BANDWITH": "1Mbit"})
    with pytest.raises(InputError, match=r"POTLUCK_ZOO: .* give one of POTLUCK_BANDWIDTH, POTLUCK_BETWEEN_LOSSES, "):
        settle(TrainSettings, {}, {"POTLUCK_ZOO": "1"})


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a/b", "k\u00fcche", "a\x1b[2J", "coordinator", "x" * 65])
def test_a_device_name_is_a_short_word_of_printable_signs(name):
    with pytest.raises(InputError, match=r"^--name: device name ") as caught:
        settle(JoinSettings, {"name": name}, {})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
    if "," not in name:
        with pytest.raises(InputError, match=r"^--local: device name "):
            settle(TrainSettings, {"local": f"{name}=1"}, {})
    assert settle(JoinSettings, {"name": "x" * 64}, {}).name == "x" * 64


def test_a_wrong_variable_or_flag_is_named():
    with pytest.raises(InputError, match=r"^POTLUCK_TIMEOUT: "):
        settle(TrainSettings, {}, {"POTLUCK_TIMEOUT": "soon"})
    with pytest.raises(InputError, match=r"^--plain-network: "):
        settle(TrainSettings, {"plain_network": "home"}, {})


@pytest.mark.parametrize(
    "flags",
    [
        {"local": "1", "no_local": True, "devices": "1"},
        {"no_local": True},
        {"listen": "127.0.0.1:7117"},
        {"local": "1,1,1", "memory": "1MB,1MB"},
        {"carrier": "gloo", "link_ports": "7200-7219"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags):
    with pytest.raises(InputError, match="--"):
        settle(TrainSettings, flags, {})


def test_the_file_is_the_flags_then_the_variables_then_the_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_file(None, {}) is None
    _file(tmp_path, "")
    assert config_file(None, {}) == Path("potluck.toml")
    assert config_file(None, {"POTLUCK_CONFIG": "b.toml"}) == Path("b.toml")
    assert config_file(Path("a.toml"), {"POTLUCK_CONFIG": "b.toml"}) == Path("a.toml")
