"""A setting means the same as a flag's text and as a TOML value."""

from __future__ import annotations

import pytest

from potluck.errors import InputError
from potluck.settings import readers
from potluck.settings.address import Ports


@pytest.mark.parametrize("value", ["0.25", 0.25])
def test_a_part_is_a_number_above_nothing_and_at_most_all(value: object) -> None:
    assert readers.part(value) == 0.25
    assert readers.part(1) == 1.0
    for wrong in (0, -0.1, 1.01, "nan", "a tenth", "10%"):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            readers.part(wrong)


@pytest.mark.parametrize("value", ["4s", 4, 4.0, "4000ms"])
def test_a_duration_may_have_a_least_and_a_most(value: object) -> None:
    assert readers.seconds_between(4.0, 4.0)(value) == 4.0
    for least_s, most_s in ((4.1, 5.0), (3.0, 3.9)):
        with pytest.raises(InputError, match=f"from {least_s:g}s to {most_s:g}s"):
            readers.seconds_between(least_s, most_s)(value)


@pytest.mark.parametrize(
    ("value", "ports"),
    [("7200-7219", Ports(7200, 7219)), ("7200", Ports(7200, 7200)), (7200, Ports(7200, 7200)), ("1-65535", (1, 65535))],
)
def test_ports_are_one_or_the_first_and_the_last(value: object, ports: Ports) -> None:
    assert readers.ports(value) == ports
    assert readers.ports(str(readers.ports(value))) == ports
    for wrong in ("", "-", "7200-", "-7219", "7200-7219-7300", "7200,7201", "0-9", "9-8", "1-65536", 7200.5):
        with pytest.raises(InputError, match="give the first and the last"):
            readers.ports(wrong)
