"""Codecs are known by name, and what they say of a tensor is asked in one place."""

from __future__ import annotations

import pytest

from potluck.compress.codec_registry import codec_named, register, wire_bytes
from potluck.errors import InputError
from tests.extending.half_precision import Half


def test_an_unknown_codec_is_named_with_those_there_are_and_where_others_come_from() -> None:
    with pytest.raises(
        InputError, match=r"^codec 'none': not known here; use one of raw, .*half.* POTLUCK_EXTENSIONS$"
    ):
        codec_named("none")


def test_two_codecs_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="codec 'half': there is one already"):
        register(Half())


@pytest.mark.parametrize(
    ("codec", "dtype", "size"),
    [
        ("raw", "float32", 24),
        ("raw", "bool", 6),
        ("half", "float32", 12),
        ("half", "float64", 12),
        ("half", "int64", 48),
    ],
)
def test_only_floating_point_numbers_weigh_what_the_codec_says(codec: str, dtype: str, size: int) -> None:
    assert wire_bytes(codec, (2, 3), dtype) == size
