"""Weights of a server are saved when they are ahead of the disk, until that works."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.coordinator.serving import snapshot_writer
from potluck.coordinator.serving.snapshot_writer import SnapshotWriter
from potluck.errors import PotluckError

PATIENT_S = 20.0


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_writer, "_LOOK_S", 0.001)


def test_what_lags_is_saved_and_what_does_not_is_left_alone() -> None:
    server, saved, looked = SimpleNamespace(lags=True), list[bool](), queue.SimpleQueue[None]()

    class Server:
        @property
        def lags(self) -> bool:
            looked.put(None)
            return bool(server.lags)

    def save() -> None:
        saved.append(server.lags)
        server.lags = False

    it = SnapshotWriter(cast(Any, Server()), save, lambda error: None, lambda error: None)
    for _ in range(4):
        looked.get(timeout=PATIENT_S)
    it.close()
    assert saved == [True]


def test_where_there_is_no_room_it_is_said_and_tried_again() -> None:
    server, said, done = SimpleNamespace(lags=True), list[str](), queue.SimpleQueue[None]()

    def save() -> None:
        if len(said) < 2:
            raise PotluckError("the disk is full")
        server.lags = False
        done.put(None)

    it = SnapshotWriter(cast(Any, server), save, lambda error: said.append(str(error)), lambda error: None)
    done.get(timeout=PATIENT_S)
    it.close()
    assert said == ["the disk is full"] * 2


def test_any_other_failure_is_told_once_and_ends_it() -> None:
    server, failures = SimpleNamespace(lags=True), queue.SimpleQueue[Exception]()

    def save() -> None:
        raise ValueError("a tensor is lost")

    it = SnapshotWriter(cast(Any, server), save, lambda error: None, failures.put)
    assert str(failures.get(timeout=PATIENT_S)) == "a tensor is lost"
    it.close()
    assert failures.empty()


def test_a_push_wakes_it_before_it_would_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_writer, "_LOOK_S", 1000.0)
    server, done = SimpleNamespace(lags=True), queue.SimpleQueue[None]()

    def save() -> None:
        server.lags = False
        done.put(None)

    it = SnapshotWriter(cast(Any, server), save, lambda error: None, lambda error: None)
    it.wake()
    done.get(timeout=PATIENT_S)
    it.close()
