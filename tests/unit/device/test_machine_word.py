"""What tells two machines apart that were made from one image: a network card with the address of its maker."""

from __future__ import annotations

import pytest

from potluck.device.host.device_kinds import built_in, machine_word

PI, OTHER = "dc:a6:32:01:02:03", "e4:5f:01:aa:bb:cc"


@pytest.mark.parametrize(
    ("cards", "found"),
    [
        ([PI], PI),
        ([OTHER, PI], PI),
        (["00:00:00:00:00:00", "02:42:ac:11:00:02", "DC-A6-32-01-02-03"], PI),  # lo, docker, as Windows writes it
        (["00:00:00:00:00:00", "10.0.0.1", ""], ""),
        (["72:c8:8a:3c:1e:22"], ""),  # made up
        ([], ""),
    ],
)
def test_only_a_card_that_was_not_made_up_counts(cards: list[str], found: str) -> None:
    assert built_in(cards) == found


def test_a_machine_has_one_word() -> None:
    assert machine_word() == machine_word()
