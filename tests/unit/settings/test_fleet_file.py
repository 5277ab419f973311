"""Fleet files: what is read, and the one line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.errors import InputError
from potluck.settings.fleet_file import read_fleet

EXAMPLE = """
bandwidth = "100Mbit"
latency = "1ms"
medium = "shared"

[[device]]
name = "desk"
memory = "8GB"
threads = 4

[[device]]
name = "pi"
speed = 0.25
memory = "512MiB"

[[link]]
between = ["desk", "coordinator"]
bandwidth = "1Gbit"
latency = 0
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_fleet_file_becomes_a_fleet(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, EXAMPLE))
    assert [(d.name, d.speed, d.memory_bytes, d.threads) for d in fleet.devices] == [
        ("desk", 1.0, 8 * 10**9, 4),
        ("pi", 0.25, 512 * 2**20, 1),
    ]
    assert (fleet.bandwidth_bytes_s, fleet.latency_s, fleet.medium) == (12.5e6, 0.001, "shared")
    assert fleet.link("coordinator", "desk").bandwidth_bytes_s == 125e6
    assert fleet.link("coordinator", "desk").latency_s == 0
    assert fleet.link("pi", "desk").latency_s == 0.001


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('memory = "8GB"', 'memery = "8GB"', "device[0].memery: unknown key; did you mean memory?"),
        ('medium = "shared"', 'median = "shared"', "median: unknown key; did you mean medium?"),
        ('medium = "shared"', 'medium = "wifi"', "medium: 'wifi' is not known; give one of full, half, shared"),
        ('memory = "8GB"', "memory = 0", "device[0].memory: 0 is no memory at all; give a size like 4GB"),
        ('memory = "8GB"', "memory = true", "device[0].memory: True is a truth value; give a text or a number"),
        ('name = "pi"', 'name = "desk"', "device[1].name: 'desk' is already device[0]; give each its own name"),
        ('name = "pi"', "", "device[1].name: missing; give the device a name"),
        ("speed = 0.25", "speed = 0", "device[1]: device pi: speed 0.0; give a number above 0"),
        ("speed = 0.25", 'speed = "fast"', "device[1].speed: 'fast' is no number"),
        ("speed = 0.25", "speed = inf", "device[1].speed: inf is no speed; give one from 1e-06 to 1,000,000"),
        ("threads = 4", "threads = 0", "device[0]: device desk: threads 0; give at least 1"),
        ('"coordinator"]', '"nas"]', "a link leads to 'nas', which is no device; name two that are"),
        ('"coordinator"]', '"desk"]', "link[0]: link desk – desk: leads from a device to itself"),
        ('["desk", "coordinator"]', '"desk"', "link[0].between: 'desk' does not name two devices"),
        ('bandwidth = "1Gbit"', 'bandwidth = "1000"', "link[0].bandwidth: '1000' has no unit"),
        ('bandwidth = "1Gbit"', 'speed = "1Gbit"', "link[0].speed: unknown key"),
        ("[[link]]", "[link]", "link: one table, not a list of them; write [[link]] with two brackets"),
        ("[[link]]", "[[", "not TOML"),
        ("speed = 0.25", "speed = " + "9" * 400, "device[1].speed: such a large number is no speed; give one from"),
        ("speed = 0.25", "speed = " + "9" * 5000, "not TOML"),
        ("speed = 0.25", "speed = 1e-300", "device[1].speed: 1e-300 is no speed; give one from 1e-06 to 1,000,000"),
        ('memory = "8GB"', "memory = 0x" + "f" * 5000, "device[0].memory: such a large number does not do"),
        ("threads = 4", "threads = " + "9" * 400, "device[0].threads: such a large number is too many"),
        ('latency = "1ms"', 'latency = "99h"', "latency: '99h' is too long for a message"),
        ('bandwidth = "1Gbit"', 'bandwidth = "0.000001bit"', "link[0].bandwidth: '0.000001bit' would let next to"),
        ('name = "pi"', 'name = "coordinator"', "device[1]: device name 'coordinator': it is taken by the coord"),
        ('medium = "shared"', '"\\u001b[31mX" = 1', "\\x1b[31mX: unknown key"),
        ('memory = "8GB"', 'kind = "\\u001b[31mX"', "device[0].kind: '\\x1b[31mX' is not known"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    path = write(tmp_path, EXAMPLE.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_fleet(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_without_devices_or_without_existence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="device: the fleet has none"):
        read_fleet(write(tmp_path, 'bandwidth = "1Gbit"'))
    with pytest.raises(InputError, match=r"cannot be read \(No such file or directory\)"):
        read_fleet(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match="device: 1001 of them"):
        read_fleet(write(tmp_path, "".join(f'[[device]]\nname = "d{i}"\n' for i in range(1001))))
