"""Sizes, rates, durations and speeds as people write them."""

import pytest

from potluck.errors import InputError
from potluck.units import duration_s, duration_text, rate_bytes_s, size_bytes, size_text, speeds


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("512MB", 512_000_000), ("1.5 GB", 1_500_000_000), ("2GiB", 2**31), (".5kB", 500)],
)
def test_a_size_is_bytes(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100Mbit", 12.5e6), ("1Gbit/s", 125e6), ("12MB", 12e6), ("9600bit", 1200.0), ("1MiB/s", 2.0**20)],
)
def test_a_rate_is_bytes_per_second(text, rate):
    assert rate_bytes_s(text) == rate


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("250ms", 0.25), ("5min", 300.0), ("1.5h", 5400.0)])
def test_a_duration_is_seconds(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("read", "text", "hint"),
    [
        (size_bytes, "512mb", "did you mean MB?"),
        (size_bytes, "512Mbit", "unknown unit 'Mbit'; give a size like 512MB, in B, kB, MB, "),
        (size_bytes, "-1MB", "give a number and a unit, like 512MB"),
        (size_bytes, "lots", "is no size"),
        (size_bytes, "1e400", "is no size"),
        (size_bytes, "9" * 400, "too large"),
        (rate_bytes_s, "100", "has no unit; give a rate like 100Mbit"),
        (rate_bytes_s, "100Mbitt", "did you mean Mbit?"),
        (rate_bytes_s, "0Mbit", "give a rate above 0"),
        (rate_bytes_s, "", "is no rate"),
        (duration_s, "5 parsecs", "unknown unit 'parsecs'"),
        (duration_s, "5m", "give a duration like 90s, in ms, s, min, h"),
        (duration_s, "0s", "leaves no time"),
    ],
)
def test_what_is_wrong_is_named_with_a_way_out(read, text, hint):
    with pytest.raises(InputError) as caught:
        read(text)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unnamed_devices_are_numbered():
    assert speeds("1,0.5") == (("local1", 1.0), ("local2", 0.5))
    assert speeds("0.5") == (("local", 0.5),)


def test_named_devices_keep_their_names():
    assert speeds("desk=1, pi=0.25") == (("desk", 1.0), ("pi", 0.25))


@pytest.mark.parametrize("text", ["", "1,", "fast", "0", "-1", "2", "nan", "inf", "a=1,a=0.5", "local2=1,1"])
def test_impossible_speeds_are_refused(text):
    with pytest.raises(InputError):
        speeds(text)


def test_numbers_are_written_for_people():
    assert [size_text(n) for n in (12, 1500, 2_000_000, 3e9)] == ["12 B", "1.5 kB", "2.0 MB", "3.0 GB"]
    assert [duration_text(s) for s in (0.4, 59, 187, 7500)] == ["0 s", "59 s", "3:07 min", "2:05 h"]
