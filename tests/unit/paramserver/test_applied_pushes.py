"""Every push counts once: whatever is lost, doubled or late on the way, and whenever the server restarts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from potluck.paramserver.applied_pushes import MOST_KEPT, Book, Entry, Page, Push, audit, missing_and_repeated
from potluck.paramserver.client import Client, Next
from potluck.types import Pace

WORKERS = ("a", "b")


class Server(RuleBasedStateMachine):
    """Workers push through a network that doubles, delays and loses; the server crashes and comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self.disk = self.book.page()
        self.entries: list[Entry] = []
        self.weights = 0  # what all applied pushes add up to
        self.on_disk: tuple[int, list[Entry]] = (0, [])
        self.made: dict[tuple[str, int, int], int] = {}  # what each push that was made is worth
        self.clients: dict[str, Client] = {}
        self.incarnation = dict.fromkeys(WORKERS, 0)
        self.gone: dict[str, list[Push]] = {w: [] for w in WORKERS}  # pushes of earlier incarnations, still on the way
        for worker in WORKERS:
            self._enter(worker)

    def _enter(self, worker: str) -> None:
        self.incarnation[worker] += 1
        self.book.enter(worker, self.incarnation[worker])
        self.clients[worker] = Client(
            worker, self.incarnation[worker], Pace("each step", steps=1), waits=False, version=self.book.version,
            now_s=0.0,
        )  # fmt: skip

    @rule(worker=st.sampled_from(WORKERS), heard=st.booleans(), worth=st.integers(1, 9))
    def push(self, worker: str, heard: bool, worth: int) -> None:
        client = self.clients[worker]
        if client.step_done(32, 1.0, 1.0) is not Next.PUSH:
            return
        push = client.push(1.0)
        self.made[worker, push.incarnation, push.sequence] = worth
        self._arrive(push)
        if heard:
            self._answer(worker)

    def _answer(self, worker: str) -> None:
        client = self.clients[worker]
        seen = self.book.seen(worker)
        if client.kept and seen is not None:
            client.answered(seen.sequence, self.book.version, self.book.durable_up_to(worker), None, 2.0)

    def _arrive(self, push: Push) -> None:
        if self.book.judge(push) == "apply":
            entry = self.book.entry(push, 1.0)
            self.book.apply(entry)
            self.entries.append(entry)
            self.weights += self.made[push.worker, push.incarnation, push.sequence]

    @rule(worker=st.sampled_from(WORKERS))
    def push_again(self, worker: str) -> None:
        """The answer was lost, so the worker asks once more."""
        client = self.clients[worker]
        for push in client.kept:
            self._arrive(push)
        self._answer(worker)

    @rule()
    def save(self) -> None:
        self.disk, self.on_disk = self.book.page(), (self.weights, list(self.entries))
        self.book.saved(self.disk)

    @rule()
    def crash(self) -> None:
        self.book = Book(Page(version=self.disk.version, seen=dict(self.disk.seen)))
        self.weights, self.entries = self.on_disk[0], list(self.on_disk[1])
        for worker, client in self.clients.items():
            self.book.enter(worker, self.incarnation[worker])
            again = client.server_back(*[self.book.durable_up_to(worker)] * 2)
            assert again is not None  # what is not kept is on disk
            for push in again:
                self._arrive(push)

    @rule(worker=st.sampled_from(WORKERS))
    def return_anew(self, worker: str) -> None:
        self.gone[worker] += self.clients[worker].kept
        self._enter(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def late(self, worker: str) -> None:
        for push in self.gone[worker]:
            assert self.book.judge(push) == "fenced"
            self._arrive(push)

    @invariant()
    def ledger_closes(self) -> None:
        assert audit(self.entries) == []
        assert self.weights == sum(self.made[e.push.worker, e.push.incarnation, e.push.sequence] for e in self.entries)
        assert self.book.version == len(self.entries)

    @invariant()
    def nothing_that_was_durable_is_lost(self) -> None:
        for worker, client in self.clients.items():
            applied = {e.push.sequence for e in self.entries if e.push.worker == worker
                       and e.push.incarnation == self.incarnation[worker]}  # fmt: skip
            kept = {push.sequence for push in client.kept}
            made = {s for w, i, s in self.made if w == worker and i == self.incarnation[worker]}
            assert made <= applied | kept
            assert len(kept) <= MOST_KEPT


TestServer = Server.TestCase
TestServer.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def push(sequence: int, incarnation: int = 1) -> Push:
    return Push(worker="a", incarnation=incarnation, sequence=sequence, base=0, steps=1, samples=32, loss=1.0)


def test_a_push_is_applied_once_in_order_and_of_the_incarnation_that_is_here() -> None:
    book = Book()
    assert book.judge(push(1)) == "fenced"  # nobody has begun
    book.enter("a", 2)
    assert book.judge(push(1)) == "fenced"
    assert book.judge(push(2, 2)) == "early"
    book.apply(book.entry(push(1, 2), 0.5))
    assert book.judge(push(1, 2)) == "known"
    with pytest.raises(ValueError, match="not the next"):
        book.entry(push(1, 2), 0.5)
    assert book.staleness(push(2, 2)) == 1


def test_a_snapshot_says_what_a_restart_does_not_lose() -> None:
    book = Book()
    book.enter("a", 1)
    book.apply(book.entry(push(1), 1.0))
    page = book.page()
    book.apply(book.entry(push(2), 1.0))
    assert book.lags
    book.saved(page)
    assert (book.durable_up_to("a"), book.lags) == (1, False)
    book.enter("a", 2)
    assert book.durable_up_to("a") == 0


def test_an_audit_finds_what_is_missing_or_doubled() -> None:
    lines = [Entry(version=i, push=push(i), scale=1.0) for i in (1, 2, 3)]
    assert audit(lines) == []
    assert audit([lines[0], lines[2]]) == ["version 3 where 2 is due", "push 3 of a follows 1"]
    assert audit([lines[0], Entry(version=2, push=push(1), scale=1.0)]) == ["push 1 of a follows 1"]


def test_a_worker_trains_on_while_its_push_is_under_way_and_keeps_two() -> None:
    client = Client("a", 1, Pace("", seconds=2.0), waits=False, version=0, now_s=0.0)
    assert client.step_done(32, 4.0, 1.0) is Next.GO_ON
    assert client.step_done(32, 2.0, 2.0) is Next.PUSH
    first = client.push(2.0)
    assert (first.steps, first.samples, first.loss, first.sequence) == (2, 64, 3.0, 1)
    assert client.step_done(32, 1.0, 4.5) is Next.GO_ON  # due, but one is under way
    assert not client.answered(0, 3, 0, None, 4.6)  # to no push of this worker
    assert client.answered(1, 3, 0, None, 4.6)
    assert client.overhead_s == pytest.approx(2.6)
    assert client.next(4.6) is Next.PUSH
    client.push(4.6)
    assert client.answered(2, 5, 0, None, 5.0)
    assert client.step_done(32, 1.0, 9.0) is Next.GO_ON  # two are kept
    client.durable(1)
    assert client.next(9.0) is Next.PUSH
    assert [p.sequence for p in client.server_back(1, 0) or ()] == [2]
    assert client.server_back(0, 0) is None  # the first is not kept any more


def test_what_a_ledger_lacks_and_has_twice_is_counted() -> None:
    def ledger(*made: tuple[str, int, int]) -> list[Entry]:
        pushes = (Push(worker=w, incarnation=i, sequence=s, base=0, steps=1, samples=1, loss=1.0) for w, i, s in made)
        return [Entry(version=n, push=push, scale=1.0) for n, push in enumerate(pushes, start=1)]

    whole = [("a", 1, 1), ("b", 1, 1), ("a", 1, 2), ("b", 2, 1), ("a", 1, 3)]
    assert missing_and_repeated(ledger(*whole)) == (0, 0)
    assert missing_and_repeated(ledger(*whole[:2], *whole[3:])) == (1, 0)
    assert missing_and_repeated(ledger(*whole, ("b", 2, 1))) == (0, 1)


def test_a_push_without_an_answer_is_pushed_again_even_if_it_counts() -> None:
    client = Client("a", 1, Pace("", steps=1), waits=True, version=0, now_s=0.0)
    client.step_done(32, 1.0, 1.0)
    push = client.push(1.0)
    client.durable(1)  # said on another way, before the answer
    assert client.server_back(1, 0) == (push,)
    client.go_on(Pace("", steps=2), 50.0, waits=False)
    assert not client.stands_still
    assert client.answered(1, 7, 0, None, 51.0)
    assert client.overhead_s == 1.0
    assert client.kept == []
    assert client.server_back(1, 0) == ()


def test_a_worker_that_waits_stands_still_until_it_is_let_go() -> None:
    client = Client("a", 1, Pace("", steps=1), waits=True, version=0, now_s=0.0)
    assert client.step_done(32, 1.0, 1.0) is Next.PUSH
    client.push(1.0)
    assert client.stands_still
    assert client.next(50.0) is Next.WAIT
    client.answered(1, 1, 1, Pace("", steps=3), 60.0)
    assert client.next(60.0) is Next.GO_ON
    assert client.pace.steps == 3


def test_what_was_durable_before_a_restart_keeps_nobody_from_pushing() -> None:
    client = Client("a", 1, Pace("", steps=1), waits=True, version=0, now_s=0.0)
    for sequence in (1, 2):
        client.step_done(32, 1.0, 1.0)
        client.push(1.0)
        client.answered(sequence, sequence, 0, None, 2.0)
    assert client.step_done(32, 1.0, 3.0) is Next.WAIT  # two are kept, and the server that would say more is gone
    assert client.server_back(2, 2) == ()
    assert client.next(4.0) is Next.PUSH
