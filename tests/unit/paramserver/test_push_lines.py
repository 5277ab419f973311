"""What a parameter server knows from the lines of its ledger."""

from __future__ import annotations

from potluck.paramserver.applied_pushes import Entry, Push, Seen
from potluck.paramserver.push_lines import Entered, Pushed, PushLine, counts_after, page_of


def pushed(version: int, worker: str, sequence: int) -> Pushed:
    push = Push(worker=worker, incarnation=1, sequence=sequence, base=0, steps=1, samples=4, loss=1.0)
    return Pushed(entry=Entry(version=version, push=push, scale=1.0))


def entered(worker: str, incarnation: int) -> Entered:
    return Entered(worker=worker, incarnation=incarnation, samples=4)


def test_the_newest_push_of_each_worker_counts_and_who_enters_anew_has_none() -> None:
    lines: list[PushLine] = [
        entered("a", 1),
        entered("b", 1),
        pushed(1, "a", 1),
        pushed(2, "b", 1),
        pushed(3, "a", 2),
        entered("b", 2),
    ]
    page = page_of(lines)
    assert page.version == 3
    assert page.seen == {"a": Seen(1, 2), "b": Seen(2, 0)}


def test_who_entered_is_kept_whatever_version_the_weights_are_of() -> None:
    assert [counts_after(line) for line in (entered("a", 1), pushed(7, "a", 1))] == [0, 7]
