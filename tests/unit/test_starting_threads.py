"""Threads of the device's own are started beyond the limit of the job, which holds again whatever happens."""

from __future__ import annotations

import threading

import pytest

from potluck import memory_limit
from potluck.memory_limit import beyond_limit, start

HARD = 10**12


class Resource:
    """The limits of a process that is not this one."""

    RLIMIT_DATA = 2

    def __init__(self) -> None:
        self.set: list[int] = []

    def getrlimit(self, what: int) -> tuple[int, int]:
        return self.set[-1] if self.set else HARD, HARD

    def setrlimit(self, what: int, limits: tuple[int, int]) -> None:
        assert limits[1] == HARD, "what is let go can never be had again"
        self.set.append(limits[0])


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Resource:
    limits = Resource()
    monkeypatch.setattr(memory_limit, "resource", limits)
    monkeypatch.setattr(memory_limit, "_limit", memory_limit._Limit())
    return limits


def test_a_thread_is_started_while_the_limit_is_lifted(limits: Resource) -> None:
    memory_limit._limit.put(1000)
    seen: list[int] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            seen.append(limits.set[-1])

    start(Thread())
    assert seen == [HARD]
    assert limits.set == [1000, HARD, 1000]


def test_the_limit_holds_again_after_an_error(limits: Resource) -> None:
    memory_limit._limit.put(1000)
    with pytest.raises(RuntimeError), beyond_limit():
        raise RuntimeError
    assert limits.set[-1] == 1000


def test_a_process_without_a_limit_gets_none(limits: Resource) -> None:
    with beyond_limit():
        pass
    assert limits.set == []


def test_a_new_limit_while_the_old_one_is_lifted_counts_at_once_and_afterwards(limits: Resource) -> None:
    memory_limit._limit.put(1000)
    with beyond_limit():
        memory_limit._limit.put(2000)
    assert limits.set[-1] == 2000
