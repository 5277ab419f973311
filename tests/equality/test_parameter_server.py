"""Workers that train on their own data around a parameter server: real models, real steps, virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import potluck
from potluck.coordinator.run_folder.push_log import PUSHES, PushLog, entries
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.datasets.digits import digits
from potluck.device.pushing.local_trainer import LocalTrainer
from potluck.paramserver.applied_pushes import Push, audit
from potluck.paramserver.client import Client, Next
from potluck.paramserver.policies.adsp import Adsp
from potluck.paramserver.policies.bsp import Bsp
from potluck.paramserver.policies.local import Lockstep
from potluck.paramserver.policies.ours import Ours
from potluck.paramserver.policy import Policy
from potluck.paramserver.server import ParameterServer, Release, Reply
from potluck.tensors.model_state import buffer_names
from potluck.uncut.uncut_run import UncutRun

SPEEDS = {"a": 1.0, "b": 1.2, "c": 0.33}  # steps a second
BATCH = 32


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels, _, _ = digits()
    return torch.as_tensor(images).double(), torch.as_tensor(labels).long()


@pytest.fixture(scope="module")
def prepared() -> PreparedJob:
    job = potluck.Job(
        model=make_model, loss=functional.cross_entropy, optimizer=potluck.SGD(lr=0.1), batch_size=BATCH, rounds=1,
        data=samples(),
    )  # fmt: skip
    return prepare_job(job)


def shards(skewed: bool) -> dict[str, dict[str, torch.Tensor]]:
    """Every worker's own samples: a third of all, or mostly some of the labels."""
    inputs, labels = samples()
    order = torch.argsort(labels, stable=True) if skewed else torch.randperm(len(labels), generator=_seeded(0))
    parts = torch.chunk(order, len(SPEEDS))
    return {w: {"input": inputs[p], "label": labels[p]} for w, p in zip(SPEEDS, parts, strict=True)}


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Run:
    """Three workers and a server; pushing takes a tenth of a second."""

    def __init__(
        self, job: PreparedJob, policy: Policy, folder: Path, *, skewed: bool, seed: int,
        model: Callable[[], nn.Module] = make_model,
    ) -> None:  # fmt: skip
        state, self.make_model = dict(job.built.state), model
        self.trainers = {
            worker: LocalTrainer(
                job.built.programs, state, job.optimizer, data, batch_size=BATCH, seed=1000 * seed + ord(worker)
            )
            for worker, data in shards(skewed).items()
        }
        buffers = buffer_names(job.built.programs)
        self.server = ParameterServer(state, policy, PushLog(folder / PUSHES), lambda *saved: None, buffers=buffers)
        self.policy, self.everything = policy, samples()
        self.clients: dict[str, Client] = {}
        self.base: dict[str, torch.Tensor] = {}
        self.at_push: dict[str, torch.Tensor] = {}
        self.steps = dict.fromkeys(SPEEDS, 0)
        self.events: list[tuple[float, int, str, Push | Release | None, Reply | None]] = []
        self._count, self._checked = 0, False

    def train(self, until_s: float) -> torch.Tensor:
        """Up to a time; it may be called again with a later one."""
        for worker, trainer in self.trainers.items() if not self.clients else ():
            admission = self.server.enter(worker, trainer.samples, 0.0)
            self.base[worker] = admission.weights.vector
            self.clients[worker] = Client(
                worker, admission.incarnation, admission.pace, waits=admission.waits, version=0, now_s=0.0
            )
            self._at(1 / SPEEDS[worker], worker)
        if self.policy.check_s is not None and not self._checked:
            self._checked = True
            self._at(0.0, "")
        while self.events and self.events[0][0] <= until_s:
            now_s, _, worker, what, reply = heapq.heappop(self.events)
            if not worker:
                self._spread(self.server.check(self.loss(), now_s), now_s)
                self._at(now_s + (self.policy.check_s or 0.0), "")
            elif isinstance(what, Push):
                difference = self.server.flat.update(self.at_push[worker], self.base[worker])
                self._spread(self.server.push(what, difference, self.clients[worker].overhead_s, now_s), now_s)
                self.server.save()
            elif isinstance(what, Release):
                self._let_go(worker, what, reply, now_s)
            else:
                self._step(worker, now_s)
        return self.server.weights.vector

    def loss(self) -> float:
        model = self.make_model().eval()
        model.load_state_dict(self.server.flat.tensors(self.server.weights.vector), strict=False)
        inputs, labels = self.everything
        with torch.no_grad():
            return float(functional.cross_entropy(model(inputs), labels))

    def _at(self, time_s: float, worker: str, what: Push | Release | None = None, reply: Reply | None = None) -> None:
        self._count += 1
        heapq.heappush(self.events, (time_s, self._count, worker, what, reply))

    def _step(self, worker: str, now_s: float) -> None:
        samples, loss = self.trainers[worker].step()
        self.steps[worker] += 1
        client = self.clients[worker]
        if client.step_done(samples, loss, now_s) is Next.PUSH:
            self.at_push[worker] = self.trainers[worker].vector()
            self._at(now_s + 0.05, worker, client.push(now_s))
        if not client.stands_still:
            self._at(now_s + 1 / SPEEDS[worker], worker)

    def _spread(self, reply: Reply, now_s: float) -> None:
        for worker, release in reply.go.items():
            self._at(now_s + 0.05, worker, release, reply)
        for worker, pace in reply.paces.items():
            if worker not in reply.go:
                self.clients[worker].repace(pace)

    def _let_go(self, worker: str, release: Release, reply: Reply | None, now_s: float) -> None:
        client = self.clients[worker]
        stood_still = client.stands_still
        self.base[worker] = self.trainers[worker].catch_up(release.weights.vector, self.at_push[worker])
        pace = reply.paces.get(worker) if reply is not None else None
        client.answered(release.sequence, release.weights.version, self.server.durable_up_to(worker), pace, now_s)
        if stood_still:
            self._at(now_s + 1 / SPEEDS[worker], worker)


def test_in_lock_step_after_every_step_it_is_training_with_the_whole_batch_on_one_machine(
    prepared: PreparedJob, tmp_path: Path
) -> None:
    run = Run(prepared, Bsp(), tmp_path, skewed=True, seed=0)
    found = run.train(59.45)  # the slowest has just pushed, and nobody again
    rounds = min(run.steps.values())
    assert rounds > 10
    one = UncutRun(prepared.built.programs, dict(prepared.built.state), prepared.optimizer, seed=0, clip_norm=None)
    for number in range(rounds):
        one.round(number, [(t.feeds(number), torch.ones(BATCH)) for t in run.trainers.values()])
    expected = run.server.flat.vector({n: p.detach() for n, p in one.stage.parameters.items()})
    start = run.server.flat.vector(dict(prepared.built.state))
    assert run.server.weights.version == rounds * len(SPEEDS)
    assert float((found - expected).norm() / (expected - start).norm()) < 1e-10


def test_what_was_trained_since_a_push_is_not_lost_when_newer_weights_arrive(prepared: PreparedJob) -> None:
    data = shards(skewed=False)["a"]
    trainer = LocalTrainer(
        prepared.built.programs, dict(prepared.built.state), prepared.optimizer, data, batch_size=BATCH, seed=1
    )
    trainer.step()
    at_push = trainer.vector()
    trainer.step()
    since = trainer.vector() - at_push
    newest = at_push + 1.0
    assert torch.equal(trainer.catch_up(newest, at_push), newest)
    assert torch.allclose(trainer.vector(), newest + since, atol=1e-12)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.full) for s in range(1, 5))])
@pytest.mark.parametrize("skewed", [pytest.param(False, marks=pytest.mark.full), True])
@pytest.mark.parametrize("policy", [Bsp, lambda: Lockstep(20), lambda: Adsp(40.0), lambda: Ours(40.0)])
def test_every_policy_learns_and_the_ledger_closes(
    policy: type[Policy], skewed: bool, seed: int, prepared: PreparedJob, tmp_path: Path
) -> None:
    run = Run(prepared, policy(), tmp_path, skewed=skewed, seed=seed)
    first = run.loss()
    run.train(240.0)
    assert run.loss() < (0.9 if run.policy.waits else 0.5) * first  # who waits gets less done in the same time
    run.server.close()
    found = entries(tmp_path / PUSHES)
    assert audit(found) == []
    assert len(found) == run.server.weights.version
    if not run.policy.waits:
        assert sum(run.steps.values()) > 0.97 * 240.0 * sum(SPEEDS.values())


def test_a_model_with_batch_norm_learns_and_its_statistics_stay_possible(tmp_path: Path) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)).double()

    job = potluck.Job(
        model=make, loss=functional.cross_entropy, optimizer=potluck.SGD(lr=0.1), batch_size=BATCH, rounds=1,
        data=samples(),
    )  # fmt: skip
    run = Run(prepare_job(job), Ours(40.0), tmp_path, skewed=True, seed=0, model=make)
    first = run.loss()
    lowest = []
    for until_s in (60.0, 120.0, 180.0, 240.0):
        vector = run.train(until_s)
        lowest.append(float(run.server.flat.tensors(vector)["2.running_var"].min()))
    assert min(lowest) > 0
    assert run.loss() < 0.5 * first


def test_a_worker_whose_push_was_left_out_begins_anew_and_learns(prepared: PreparedJob) -> None:
    optimizer = potluck.SGD(lr=0.1, momentum=0.9)
    trainer = LocalTrainer(
        prepared.built.programs, dict(prepared.built.state), optimizer, shards(skewed=False)["a"], batch_size=BATCH,
        seed=1,
    )  # fmt: skip
    sound = trainer.vector()
    trainer.step()
    trainer.load(torch.full_like(sound, torch.nan))
    trainer.catch_up(sound, trainer.vector())
    assert not torch.isfinite(trainer.vector()).all()  # what it has is of no use any more
    assert torch.equal(trainer.begin_anew(sound), sound)
    losses = [trainer.step()[1] for _ in range(60)]
    assert losses[-1] < 0.7 * losses[0]
