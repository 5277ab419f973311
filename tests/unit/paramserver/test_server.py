"""The server: every push once and whole, one version at a time, nothing that was durable lost in a restart."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import torch

from potluck.coordinator.run_folder.push_log import PUSHES, PushLog, entries
from potluck.errors import InputError, PotluckError
from potluck.paramserver.applied_pushes import Push, audit
from potluck.paramserver.client import Client, Next
from potluck.paramserver.outer import outer_factors
from potluck.paramserver.policies.bsp import Bsp
from potluck.paramserver.policies.local import Lockstep
from potluck.paramserver.policies.ours import Ours
from potluck.paramserver.policy import Policy
from potluck.paramserver.server import Admission, ParameterServer
from potluck.tensors.checkpoint import Position, load, newest, write
from potluck.tensors.flat_vector import Flat
from potluck.types import Pace

TENSORS = {"a": torch.zeros(3, 2), "count": torch.tensor(7), "b": torch.zeros(5)}


class Disk:
    """Checkpoints of a run, as the coordinator writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, version: int, tensors: Mapping[str, torch.Tensor], velocity: Mapping[str, torch.Tensor]) -> None:
        place = Position(
            round=version, epoch=0, index_in_epoch=0, seed=0, sample_count=1, batch_size=1, program=""
        )  # fmt: skip
        write(self.folder, place, tensors, velocity)

    def server(self, policy: Policy | None = None) -> ParameterServer:
        """A server that goes on from what is on disk."""
        found = newest(self.folder)
        if found is None:
            return ParameterServer(TENSORS, policy or Policy(), PushLog(self.folder / PUSHES), self.save)
        _, tensors, velocity = load(found.path)
        version = found.manifest.position.round
        return ParameterServer(
            tensors, policy or Policy(), PushLog(self.folder / PUSHES, version), self.save, velocity=velocity
        )  # fmt: skip


def a_push(admission: Admission, worker: str, sequence: int, base: int = 0) -> Push:
    return Push(
        worker=worker, incarnation=admission.incarnation, sequence=sequence, base=base, steps=1, samples=32, loss=1.0
    )


def ones(times: float = 1.0) -> torch.Tensor:
    return torch.full((11,), times)


def test_a_vector_and_its_tensors() -> None:
    flat = Flat.of({"x": torch.arange(6.0).view(2, 3).t(), "n": torch.tensor(3), "y": torch.tensor(9.0)})
    vector = flat.vector({"x": torch.arange(6.0).view(2, 3).t(), "y": torch.tensor(9.0)})
    assert flat.size == len(vector) == 7
    back = flat.tensors(vector)
    assert torch.equal(back["x"], torch.arange(6.0).view(2, 3).t())
    assert back["y"].shape == ()
    with pytest.raises(InputError, match="float32, float64"):
        Flat.of({"x": torch.zeros(2), "y": torch.zeros(2, dtype=torch.float64)})


def test_pushes_add_up_to_their_mean_and_a_pull_is_of_one_version(tmp_path: Path) -> None:
    server = Disk(tmp_path).server()
    first, second = (server.enter(w, 100, 0.0) for w in "ab")
    reply = server.push(a_push(first, "a", 1), ones(2.0), 0.1, 1.0)
    assert (reply.status, reply.go["a"].weights.version, reply.go["a"].sequence) == ("applied", 1, 1)
    kept = reply.go["a"].weights.vector
    server.push(a_push(second, "b", 1), ones(4.0), 0.1, 1.0)
    assert torch.equal(kept, ones(1.0))  # whoever pulled keeps what it pulled
    assert torch.equal(server.weights.vector, ones(3.0))
    assert server.push(a_push(first, "a", 1), ones(2.0), 0.1, 2.0).status == "known"
    assert torch.equal(server.weights.vector, ones(3.0))


class Stubborn(Policy):
    """Lets nobody go."""

    waits = True

    def may_go(self, worker: str) -> bool:
        return False


def test_it_is_stuck_when_all_wait_and_none_is_left_to_wait_for(tmp_path: Path) -> None:
    server = Disk(tmp_path).server(Stubborn())
    assert server.stuck == 0  # with nobody here
    a, _ = server.enter("a", 10, 0.0), server.enter("b", 10, 0.0)
    server.push(a_push(a, "a", 1), torch.zeros(11), 0.0, 1.0)
    assert server.stuck == 0  # b may change that
    server.leave("b", 2.0)
    assert server.stuck == 1
    c = server.enter("c", 10, 3.0)
    assert server.stuck == 0
    server.push(a_push(c, "c", 1), torch.zeros(11), 0.0, 4.0)
    assert server.stuck == 2
    server.close()


def test_in_lock_step_all_are_let_go_with_the_same_weights(tmp_path: Path) -> None:
    server = Disk(tmp_path).server(Bsp())
    first, second = (server.enter(w, 100, 0.0) for w in "ab")
    assert first.waits
    assert server.push(a_push(first, "a", 1), ones(), 0.1, 1.0).go == {}
    reply = server.push(a_push(second, "b", 1), ones(3.0), 0.1, 2.0)
    assert set(reply.go) == {"a", "b"}
    assert all(torch.equal(release.weights.vector, ones(2.0)) for release in reply.go.values())
    server.push(a_push(first, "a", 2), ones(), 0.1, 3.0)
    assert set(server.leave("b", 4.0).go) == {"a"}


def test_a_later_incarnation_fences_the_earlier_one(tmp_path: Path) -> None:
    server = Disk(tmp_path).server()
    old, new = server.enter("a", 100, 0.0), server.enter("a", 100, 1.0)
    assert server.push(a_push(old, "a", 1), ones(), 0.1, 2.0).status == "fenced"
    assert "join again" in server.push(a_push(old, "a", 1), ones(), 0.1, 2.0).reason
    assert server.push(a_push(new, "a", 2), ones(), 0.1, 2.0).status == "early"
    assert server.push(a_push(new, "a", 1), ones(), 0.1, 2.0).status == "applied"
    server.close()
    again = Disk(tmp_path).server()
    assert again.enter("a", 100, 0.0).incarnation == 3  # also after a restart
    assert again.push(a_push(new, "a", 2), ones(), 0.1, 2.0).status == "fenced"


@pytest.mark.parametrize("bad", [ones(math.nan), ones(1e9), torch.ones(10), torch.ones(11, dtype=torch.float64)])
def test_what_would_do_harm_is_skipped_named_and_written_down(tmp_path: Path, bad: torch.Tensor) -> None:
    server = Disk(tmp_path).server()
    a, b, c = (server.enter(w, 100, 0.0) for w in "abc")
    for admission, worker in ((a, "a"), (c, "c")):
        server.push(a_push(admission, worker, 1), ones(), 0.1, 1.0)
    diverged = msgspec.structs.replace(a_push(b, "b", 1), loss=None)
    reply = server.push(diverged, bad, 0.1, 1.0)
    assert reply.status == "skipped"
    assert "update of b" in reply.reason
    assert torch.allclose(reply.go["b"].weights.vector, ones(2 / 3))  # it goes on with the others' weights
    server.close()
    assert [bool(e.skipped) for e in entries(tmp_path / PUSHES)] == [False, False, True]


def test_a_repeated_push_does_not_free_a_worker_that_must_wait(tmp_path: Path) -> None:
    server = Disk(tmp_path).server(Bsp())
    first, second = (server.enter(w, 100, 0.0) for w in "ab")
    push = a_push(first, "a", 1)
    assert [server.push(push, ones(), 0.1, 1.0).go for _ in range(2)] == [{}, {}]
    assert set(server.push(a_push(second, "b", 1), ones(), 0.1, 2.0).go) == {"a", "b"}
    assert set(server.push(push, ones(), 0.1, 3.0).go) == {"a"}  # its answer was lost


def test_a_worker_that_comes_anew_frees_those_who_waited_for_it(tmp_path: Path) -> None:
    server = Disk(tmp_path).server(Bsp())
    first, _ = (server.enter(w, 100, 0.0) for w in "ab")
    server.push(a_push(first, "a", 1), ones(), 0.1, 1.0)
    assert set(server.enter("b", 100, 2.0).others.go) == {"a"}


def test_a_push_that_cannot_be_written_down_never_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Disk(tmp_path).server(Bsp())
    first, _ = (server.enter(w, 100, 0.0) for w in "ab")

    def full(self: PushLog, line: object) -> None:
        raise PotluckError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(PushLog, "append", full)
        with pytest.raises(PotluckError, match="no room"):
            server.push(a_push(first, "a", 1), ones(), 0.1, 1.0)
    assert server.push(a_push(first, "a", 1), ones(), 0.1, 1.0).status == "applied"
    assert torch.equal(server.weights.vector, ones(0.5))


def test_tensors_go_to_their_own_names_however_they_are_ordered(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    server = disk.server()
    admission = server.enter("w", 100, 0.0)
    flat = Flat.of({"count": TENSORS["count"], "b": TENSORS["b"], "a": TENSORS["a"]})  # as a worker may have them
    difference = flat.vector({"a": torch.full((3, 2), 1.0), "b": torch.full((5,), 2.0)})
    server.push(a_push(admission, "w", 1), difference, 0.1, 1.0)
    server.save()
    server.close()
    found = newest(tmp_path)
    assert found is not None
    _, tensors, _ = load(found.path)
    assert torch.equal(tensors["a"], torch.full((3, 2), 1.0))
    assert torch.equal(tensors["b"], torch.full((5,), 2.0))
    assert tensors["count"] == 7


def test_a_restart_forgets_what_was_not_saved_and_gets_it_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    server = disk.server()
    admission = server.enter("a", 100, 0.0)
    server.enter("other", 100, 0.0)
    client = Client("a", admission.incarnation, Pace("", steps=1), waits=False, version=0, now_s=0.0)
    worth: dict[int, float] = {}
    for number in (1, 2, 3):
        assert client.step_done(32, 1.0, float(number)) is Next.PUSH
        push = client.push(float(number))
        worth[push.sequence] = float(10**number)
        reply = server.push(push, ones(worth[push.sequence]), 0.1, float(number))
        if number == 1:
            server.save()
        client.answered(push.sequence, server.weights.version, server.durable_up_to("a"), None, number + 0.5)
        assert reply.status == "applied"
    assert [p.sequence for p in client.kept] == [2, 3]
    server.close()  # as if it had been killed: nothing more is written
    again = disk.server()
    assert torch.equal(again.weights.vector, ones(10.0 / 2))
    assert again.back("a", 7, 5.0) is None  # another incarnation
    back = again.back("a", admission.incarnation, 5.0)
    assert back is not None
    for push in client.server_back(back.seen, 0) or ():
        assert again.push(push, ones(worth[push.sequence]), 0.1, 9.0).status == "applied"
    assert torch.equal(again.weights.vector, ones(1110.0 / 2))  # half of it, also while the other is not back yet
    again.close()
    assert audit(entries(tmp_path / PUSHES)) == []


def test_weights_that_the_ledger_does_not_explain_are_refused(tmp_path: Path) -> None:
    server = Disk(tmp_path).server()
    admission = server.enter("a", 100, 0.0)
    server.push(a_push(admission, "a", 1), ones(), 0.1, 1.0)
    server.save()
    server.close()
    (tmp_path / PUSHES).unlink()
    with pytest.raises(InputError, match="ends with push 0, and the weights are of 1"):
        Disk(tmp_path).server()


def test_a_torn_line_is_cut_off_and_a_damaged_one_named(tmp_path: Path) -> None:
    server = Disk(tmp_path).server()
    admission = server.enter("a", 100, 0.0)
    server.push(a_push(admission, "a", 1), ones(), 0.1, 1.0)
    server.close()
    path = tmp_path / PUSHES
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"pus')
    PushLog(path, 1).close()
    assert path.read_bytes() == whole
    path.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(InputError, match="line 1"):
        PushLog(path, 1)


def test_many_threads_push_at_once_and_the_ledger_closes(tmp_path: Path) -> None:
    server = Disk(tmp_path).server()
    admissions = {f"w{i}": server.enter(f"w{i}", 100, 0.0) for i in range(6)}
    count = 50

    def work(worker: str) -> None:
        for sequence in range(1, count + 1):
            push = a_push(admissions[worker], worker, sequence)
            server.push(push, ones(6.0), 0.1, 1.0)
            server.push(push, ones(6.0), 0.1, 1.0)  # its answer was lost

    threads = [threading.Thread(target=work, args=(w,)) for w in admissions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert torch.allclose(server.weights.vector, ones(6.0 * count))
    server.close()
    found = entries(tmp_path / PUSHES)
    assert audit(found) == []
    assert len(found) == 6 * count


class WithMomentum(Policy):
    """Nobody waits, and the server's step has momentum."""

    outer_momentum = 0.5


def pushed(server: ParameterServer, admission: Admission, worker: str, *sizes: float, first: int = 1) -> torch.Tensor:
    for sequence, size in enumerate(sizes, start=first):
        assert server.push(a_push(admission, worker, sequence), ones(size), 0.1, 1.0).status == "applied"
        server.save()
    return server.weights.vector


def test_with_momentum_a_change_goes_on_and_comes_to_its_part(tmp_path: Path) -> None:
    server = Disk(tmp_path).server(WithMomentum())
    before = server.weights.vector.clone()
    a = server.enter("a", 100, 0.0)
    server.enter("b", 100, 0.0)
    kept, part = outer_factors(0.5, 2)
    after = pushed(server, a, "a", 2.0)  # counts half
    torch.testing.assert_close(after - before, ones(part * (1 + kept)))
    after = pushed(server, a, "a", *[0.0] * 60, first=2)
    torch.testing.assert_close(after - before, ones(1 / (1 - 0.5)))


def test_momentum_is_there_after_a_restart(tmp_path: Path) -> None:
    ends = []
    for folder, restarts in ((tmp_path / "whole", False), (tmp_path / "parts", True)):
        folder.mkdir()
        disk = Disk(folder)
        server = disk.server(WithMomentum())
        admission = server.enter("a", 100, 0.0)
        server.enter("b", 100, 0.0)
        pushed(server, admission, "a", 1.0, 2.0)
        if restarts:
            server.close()
            server = disk.server(WithMomentum())
        ends.append(pushed(server, admission, "a", 3.0, first=3))
        server.close()
    assert torch.equal(*ends)


@pytest.mark.parametrize("momentum", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("workers", [1, 2, 3, 12])
def test_more_workers_have_less_added(momentum: float, workers: int) -> None:
    kept, part = outer_factors(momentum, workers)
    gain = part / (1 - kept)  # of all that a change comes to
    assert 1.0 <= gain <= 1 / (1 - momentum) + 1e-12
    if momentum and workers > 3:
        assert gain < outer_factors(momentum, 3)[1] / (1 - outer_factors(momentum, 3)[0])
    if workers == 1 or not momentum:
        assert (kept, part) == (0.0, 1.0)


def test_running_statistics_move_towards_what_was_measured_and_stay_possible(tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(2), "bn.running_var": torch.ones(1)}
    server = ParameterServer(
        tensors, Ours(), PushLog(tmp_path / PUSHES), lambda *saved: None, buffers={"bn.running_var"}
    )
    flat = server.flat
    assert [name for name, _ in flat.measured] == ["bn.running_var"]
    workers = {w: server.enter(w, 100, 0.0) for w in "abc"}
    pulled = {w: admission.weights for w, admission in workers.items()}
    for number in range(1, 9):
        for worker, admission in workers.items():  # each measures 0.02, from whatever it pulled
            base = pulled[worker]
            now = flat.vector({"w": flat.tensors(base.vector)["w"] + 1, "bn.running_var": torch.tensor([0.02])})
            push = a_push(admission, worker, number, base.version)
            pulled[worker] = server.push(push, flat.update(now, base.vector), 0.1, number).go[worker].weights
            variance = float(flat.tensors(pulled[worker].vector)["bn.running_var"])
            assert 0.0199 < variance <= 1.0
        server.save()
    assert variance < 0.03
    assert float(server.weights.vector[0]) > 7  # learnt ones add up


def test_a_worker_catches_up_with_what_it_learnt_but_not_with_what_it_measured() -> None:
    flat = Flat.of({"w": torch.zeros(2), "mean": torch.zeros(1)}, {"mean"})
    at_push, now, newest = torch.tensor([1.0, 1.0, 5.0]), torch.tensor([2.0, 3.0, 6.0]), torch.tensor([7.0, 7.0, 4.0])
    assert torch.equal(flat.caught_up(newest, now, at_push), torch.tensor([8.0, 9.0, 4.0]))
    assert torch.equal(flat.update(now, at_push), torch.tensor([1.0, 2.0, 6.0]))


def test_a_statistic_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(2), "mean": torch.zeros(1)}
    server = ParameterServer(tensors, Policy(), PushLog(tmp_path / PUSHES), lambda *saved: None, buffers={"mean"})
    admission = server.enter("a", 100, 0.0)
    reply = server.push(a_push(admission, "a", 1), torch.tensor([1.0, 1.0, math.inf]), 0.1, 1.0)
    assert reply.status == "skipped"
    assert reply.go["a"].skipped == reply.reason


def test_who_is_let_go_with_others_hears_of_its_own_push_alone(tmp_path: Path) -> None:
    server = Disk(tmp_path).server(Bsp())
    first, second = (server.enter(w, 100, 0.0) for w in "ab")
    server.push(a_push(first, "a", 1), ones(math.nan), 0.1, 1.0)
    reply = server.push(a_push(second, "b", 1), ones(), 0.1, 2.0)
    assert "not finite" in reply.go["a"].skipped
    assert reply.go["b"].skipped == ""
    assert "not finite" in server.push(a_push(first, "a", 1), ones(math.nan), 0.1, 3.0).go["a"].skipped  # once more
    server.push(a_push(first, "a", 2), ones(), 0.1, 4.0)
    assert server.push(a_push(second, "b", 2), ones(), 0.1, 5.0).go["a"].skipped == ""


def test_who_never_pushes_is_found_out_but_not_who_cannot(tmp_path: Path) -> None:
    server = Disk(tmp_path).server(Lockstep(4))
    first, _ = (server.enter(w, 100, 0.0, step_s=2.0) for w in "ab")  # 8 s a push
    assert server.silent(79.0, 5.0) == {}
    assert set(server.silent(81.0, 5.0)) == {"a", "b"}
    assert server.silent(81.0, 300.0) == {}  # at least so long
    server.push(a_push(first, "a", 1), ones(), 0.1, 9.0)
    assert server.silent(200.0, 5.0) == {"b": 200.0}  # a waits for b
    server.leave("b", 200.0)
    assert server.silent(270.0, 5.0) == {}
    server.push(a_push(first, "a", 2), ones(), 0.1, 270.0)
    assert server.silent(4000.0, 5.0) == {}  # it may not push before there is a snapshot
    server.save()
    assert set(server.silent(4000.0, 5.0)) == {"a"}


def test_a_later_pace_is_known_from_an_earlier_one(tmp_path: Path) -> None:
    server = Disk(tmp_path).server(Ours(10.0, 200.0))
    admission = server.enter("a", 100, 0.0)
    client = Client("a", admission.incarnation, admission.pace, waits=False, version=0, now_s=0.0)
    reply = server.push(a_push(admission, "a", 1), ones(), 0.1, 1.0)
    later = server.check(1.0, 1.5).paces["a"]
    client.repace(later)
    client.repace(reply.paces["a"])  # it travelled with weights, which take longer
    assert client.pace == later
