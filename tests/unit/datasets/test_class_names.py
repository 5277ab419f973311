"""What labels stand for is the same on every device, or one line says what is not."""

from __future__ import annotations

from potluck.datasets.class_names import ClassNames


def test_who_calls_labels_by_other_names_than_the_first_is_told_both() -> None:
    names = ClassNames()
    assert names.problem("a", ("cat", "dog")) == ""
    assert names.problem("b", ("dog", "horse")) == (
        "b has folders dog, horse, and a has cat, dog, so that one number would be two labels; "
        "make a folder for every label on each, an empty one where there are no pictures, or call folders 0, 1, …"
    )
    assert names.problem("c", ("cat", "dog")) == ""


def test_who_has_no_names_is_asked_for_none_and_is_not_the_first() -> None:
    names = ClassNames()
    assert names.problem("a", ()) == ""
    assert names.problem("b", ("cat", "dog")) == ""
    assert names.problem("a", ()) == ""
    assert "and b has cat, dog" in names.problem("c", ("cat",))


def test_of_very_many_names_those_are_told_that_the_other_does_not_have() -> None:
    names, many = ClassNames(), tuple(f"n{number:03}" for number in range(200))
    assert names.problem("a", many) == ""
    problem = names.problem("b", (*many[:-1], "zebra"))
    assert problem.startswith("b has folders 200 of them, among them zebra, and a has 200 of them, among them n199, so")
