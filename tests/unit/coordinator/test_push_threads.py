"""The parameter server on the network: what happens where the disk has no room."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import msgspec
import pytest
import torch

from potluck.coordinator.run_folder.push_log import PUSHES, PushLog
from potluck.coordinator.serving import push_threads as under_test
from potluck.coordinator.serving.push_threads import Serving
from potluck.errors import InputError, PotluckError
from potluck.paramserver.applied_pushes import Push
from potluck.paramserver.events import Report
from potluck.paramserver.messages import PushWords
from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_choice import Choice
from potluck.paramserver.server import ParameterServer, Reply
from potluck.wire.link import Link

PATIENT_S = 20.0


class NoLink:
    """Takes whatever is sent, and knows nobody."""

    address = "nowhere"

    def __getattr__(self, name: str) -> object:
        return lambda *words, **others: None


def test_a_push_that_finds_no_room_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_AGAIN_S", 0.01)
    server = ParameterServer({"w": torch.zeros(2)}, Policy(), PushLog(tmp_path / PUSHES), lambda *saved: None)
    stuck: queue.SimpleQueue[PotluckError] = queue.SimpleQueue()
    failed: list[Exception] = []
    replies: list[Reply] = []
    link: Link = NoLink()  # type: ignore[assignment]
    serving = Serving(
        server, link, "run", lambda worker, message: None, lambda said, reply: replies.append(reply),
        lambda *lost: None, failed.append, stuck.put, lambda: 1.0, PATIENT_S,
    )  # fmt: skip
    serving.enter("a", 100)
    push = Push(worker="a", incarnation=1, sequence=1, base=0, steps=1, samples=32, loss=1.0)
    said = PushWords(push=push, overhead_s=0.0)
    append, room = PushLog.append, threading.Event()

    def full(self: PushLog, line: msgspec.Struct) -> None:
        if not room.is_set():
            raise PotluckError("pushes.jsonl: cannot be written")
        append(self, line)  # type: ignore[arg-type]

    monkeypatch.setattr(PushLog, "append", full)
    pushing = threading.Thread(target=serving._apply, args=("a", said, torch.ones(2)))
    pushing.start()
    for _ in range(3):
        assert "cannot be written" in str(stuck.get(timeout=PATIENT_S))
    assert not replies
    room.set()
    pushing.join(PATIENT_S)
    assert [reply.status for reply in replies] == ["applied"]
    assert torch.equal(server.weights.vector, torch.ones(2))
    assert not failed
    serving.close()


class Weightless(Policy):
    """Cannot say how much a push counts."""

    def scale(self, report: Report) -> float:
        raise ValueError("no idea")


def test_a_policy_that_fails_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    policy = Choice("theirs", lambda slowest_s: Weightless()).policy(0.1)
    server = ParameterServer({"w": torch.zeros(2)}, policy, PushLog(tmp_path / PUSHES), lambda *saved: None)
    stuck: list[PotluckError] = []
    link: Link = NoLink()  # type: ignore[assignment]
    serving = Serving(
        server, link, "run", lambda worker, message: None, lambda said, reply: None, lambda *lost: None,
        lambda error: None, stuck.append, lambda: 1.0, PATIENT_S,
    )  # fmt: skip
    serving._over.set()  # nothing is tried again
    serving.enter("a", 100)
    push = Push(worker="a", incarnation=1, sequence=1, base=0, steps=1, samples=32, loss=1.0)
    with pytest.raises(InputError, match=r"^push policy 'theirs': scale failed \(ValueError: no idea\); repair it$"):
        serving._apply("a", PushWords(push=push, overhead_s=0.0), torch.ones(2))
    assert not stuck
    serving.close()
