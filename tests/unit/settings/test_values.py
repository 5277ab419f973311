"""Readers of single values, and of a file of them: what they take, and the words for what they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.errors import InputError
from potluck.settings import values
from potluck.settings.address import Ports


def test_a_number_may_stand_where_a_text_is_meant_and_a_list_where_commas_are() -> None:
    assert values.text(0.5) == "0.5"
    assert values.texts(["512MB", 1000]) == "512MB,1000"
    assert values.path("~/runs") == Path.home() / "runs"
    assert (values.rate("1Mbit"), values.duration("2min"), values.size("2kB")) == (125_000.0, 120.0, 2000)
    assert (values.truth("Yes"), values.truth(False), values.whole(0)("3")) == (True, False, 3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "True is a truth value; give a text or a number"),
        ([1], "[1] is a list; give a text or a number"),
        ({"a": 1}, "{'a': 1} is a table; give a text or a number"),
        (1 << 300, "such a large number does not do; give a smaller one"),
    ],
)
def test_what_is_no_text_is_said_to_be_what_it_is(value: object, words: str) -> None:
    with pytest.raises(InputError) as caught:
        values.text(value)
    assert str(caught.value) == words


def test_what_is_shown_is_short_and_nothing_that_a_terminal_would_obey() -> None:
    assert values.shown("\x1b[31mred") == "'\\x1b[31mred'"
    assert len(values.shown("x" * 500)) == 81
    assert values.shown("küche") == "'küche'"


@pytest.mark.parametrize("value", ["0.25", 0.25])
def test_a_part_is_a_number_above_nothing_and_at_most_all(value: object) -> None:
    assert values.part(value) == 0.25
    assert values.part(1) == 1.0
    for wrong in (0, -0.1, 1.01, "nan", "a tenth", "10%"):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            values.part(wrong)


@pytest.mark.parametrize("value", ["4s", 4, 4.0, "4000ms"])
def test_a_duration_may_have_a_least_and_a_most(value: object) -> None:
    assert values.seconds_between(4.0, 4.0)(value) == 4.0
    for least_s, most_s in ((4.1, 5.0), (3.0, 3.9)):
        with pytest.raises(InputError, match=f"from {least_s:g}s to {most_s:g}s"):
            values.seconds_between(least_s, most_s)(value)


@pytest.mark.parametrize(
    ("value", "ports"),
    [("7200-7219", Ports(7200, 7219)), ("7200", Ports(7200, 7200)), (7200, Ports(7200, 7200)), ("1-65535", (1, 65535))],
)
def test_ports_are_one_or_the_first_and_the_last(value: object, ports: Ports) -> None:
    assert values.ports(value) == ports
    assert values.ports(str(values.ports(value))) == ports
    for wrong in ("", "-", "7200-", "-7219", "7200-7219-7300", "7200,7201", "0-9", "9-8", "1-65536", 7200.5):
        with pytest.raises(InputError, match="give the first and the last"):
            values.ports(wrong)


def test_a_key_that_somebody_else_reads_is_passed_over_and_hinted_at() -> None:
    readers = {"speed": values.text}
    assert values.read_table({"speed": 1, "device": []}, readers, "file: ", also=("device",)) == {"speed": "1"}
    with pytest.raises(InputError, match=r"^file: devise: unknown key; did you mean device\?"):
        values.read_table({"devise": []}, readers, "file: ", also=("device",))
    with pytest.raises(InputError, match=r"^file: speed: True is a truth value"):
        values.read_table({"speed": True}, readers, "file: ")


def test_a_file_that_is_none_of_its_kind_is_named_with_the_page_that_describes_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("a = 1")
    assert values.read_toml(path, "fleet", "docs/planning.md") == {"a": 1}
    path.write_bytes(b"#" * (values.MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match=r"more than 1048576 bytes; give the path of a fleet file"):
        values.read_toml(path, "fleet", "docs/planning.md")
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"not TOML \(.*; write it as in docs/planning.md"):
        values.read_toml(path, "fleet", "docs/planning.md")
