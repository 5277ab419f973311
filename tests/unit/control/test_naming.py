"""What devices are called that say one name: another machine gets another, and who comes back gets its own."""

from __future__ import annotations

import pytest

from potluck.control.naming import Caller, Known, NameGiven, name_for

GUEST, CHOSEN = False, True  # whether it insists on its name
HERE, GONE = True, False
A = Known("a", HERE)
A_GONE = Known("a", GONE)


@pytest.mark.parametrize(
    ("known", "machine", "name"),
    [
        ({}, "a", "pi"),
        ({"desk": Known("d", HERE)}, "a", "pi"),
        ({"pi": A}, "b", "pi-2"),
        ({"pi": A, "pi-2": Known("b", HERE)}, "c", "pi-3"),
        ({"pi": A}, "a", "pi-2"),  # twice on one machine
        ({"pi": A_GONE}, "a", "pi"),  # started again
        ({"pi": A_GONE}, "b", "pi-2"),  # and this is not what is gone
        ({"pi": A, "pi-2": Known("b", GONE)}, "b", "pi-2"),
        ({"pi": A, "pi-2": Known("b", GONE)}, "c", "pi-3"),
        ({"pi": A_GONE, "pi-2": Known("b", GONE)}, "b", "pi-2"),  # whoever comes first
        ({"pi": A_GONE}, "", "pi"),  # where machines cannot be told apart, a name that nobody has is free
        ({"pi": Known("", GONE)}, "b", "pi"),
        ({"pi": Known("", HERE)}, "", "pi-2"),
    ],
)
def test_a_device_that_is_called_after_its_host(known: dict[str, Known], machine: str, name: str) -> None:
    found = name_for(Caller("pi", GUEST, machine), known)
    assert found == NameGiven(name, "" if name == "pi" else "the name pi is taken")


@pytest.mark.parametrize("machine", ["a", "b", ""])
def test_one_that_insists_has_its_name_unless_somebody_is_here_by_it(machine: str) -> None:
    caller = Caller("pi", CHOSEN, machine)
    assert name_for(caller, {}) == NameGiven("pi")
    assert name_for(caller, {"pi": A_GONE}) == NameGiven("pi")
    assert name_for(caller, {"pi": A}) == NameGiven(
        None, "the name pi is taken; join with another --name, or without one"
    )  # fmt: skip


def test_a_long_name_stays_one_that_is_allowed() -> None:
    long = "x" * 64
    assert name_for(Caller(long, GUEST, ""), {long: A}).name == "x" * 62 + "-2"
