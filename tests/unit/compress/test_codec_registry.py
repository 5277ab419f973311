"""Codecs are known by name, and what they say of a tensor is asked in one place."""

from __future__ import annotations

import pytest

from potluck.compress.codec import FLOATS
from potluck.compress.codec_registry import codec_named, register, seconds_of, wire_bytes
from potluck.errors import InputError
from potluck.types import DeviceProfile, DeviceSpec
from tests.extending.half_precision import Half


def test_an_unknown_codec_is_named_with_those_there_are_and_where_others_come_from() -> None:
    with pytest.raises(
        InputError, match=r"^codec 'none': not known here; use one of raw, .*half.* POTLUCK_EXTENSIONS$"
    ):
        codec_named("none")


def test_two_codecs_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="codec 'half': there is one already"):
        register(Half())


def test_what_is_no_codec_is_refused_when_it_is_registered() -> None:
    class Halved:
        name, exact = "halved", False
        bytes, encode = Half.bytes, Half.encode

    with pytest.raises(InputError, match=r"^codec 'halved': it has no seconds and no decode; see docs/extending.md$"):
        register(Halved())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^codec 'half': the class itself is given; register one of it: Half\(\)$"):
        register(Half)  # type: ignore[arg-type]


def test_only_floating_point_numbers_weigh_what_the_codec_says() -> None:
    assert [wire_bytes("raw", (2, 3), dtype) for dtype in ("float32", "bool")] == [24, 6]
    assert {wire_bytes(Half.name, (2, 3), dtype) for dtype in FLOATS} == {12}
    assert wire_bytes(Half.name, (2, 3), "int64") == 48


@pytest.mark.parametrize("answer", [12.0, None, "12", -1, float("nan")])
def test_a_weight_that_is_no_whole_number_is_refused_where_a_plan_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    monkeypatch.setattr(Half, "bytes", lambda self, shape, dtype: answer)
    why = rf"^codec 'half': bytes gave {answer!r} for \(5, 32\) float32; let it give a whole number$"
    with pytest.raises(InputError, match=why):
        wire_bytes("half", (5, 32), "float32")


@pytest.mark.parametrize("answer", [None, "1", -1e-9, float("inf")])
def test_so_is_a_time_that_is_none(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setattr(Half, "seconds", lambda self, device: answer)
    device = DeviceProfile(device=DeviceSpec(name="a"), blocks=())
    with pytest.raises(InputError, match=f"^codec 'half': seconds gave {answer!r}; let it give a number of seconds"):
        seconds_of(codec_named("half"), device)
