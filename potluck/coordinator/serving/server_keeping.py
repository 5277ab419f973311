"""What becomes of a parameter server's weights: snapshots for a restart, evaluations, checkpoints, the final model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from potluck.coordinator.rounds.best_so_far import BestSoFar, seen_before
from potluck.coordinator.run_folder.folder import check_same, save_model
from potluck.coordinator.run_folder.folder_names import MODEL
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.coordinator.serving.push_threads import Serving
from potluck.coordinator.serving.snapshot_writer import SnapshotWriter
from potluck.coordinator.serving.whole_evaluation import WholeEvaluation
from potluck.errors import PotluckError
from potluck.metrics.records import CheckpointRecord, EvaluationRecord, IncidentRecord, Record
from potluck.paramserver.server import ParameterServer
from potluck.tensors import checkpoint
from potluck.tensors.model_state import ModelState

SERVER = "server"  # folder of the snapshots, in a run's folder
_ALL_ROUNDS = 2**62  # above any number of rounds: nothing seen before is left out

_Tensors = Mapping[str, torch.Tensor]


class ServerKeeping:
    """Keeps the weights of one server. A full disk does not stop training."""

    def __init__(
        self, prepared: PreparedJob, path: Path, say: Callable[[Record], None],
        failed: Callable[[Exception], None], seconds: Callable[[], float], *, resume: bool,
    ) -> None:  # fmt: skip
        """`failed` is told what goes wrong in the background, from any thread; `seconds` is the run's clock."""
        self._seconds = seconds
        self._prepared, self._job, self._path, self._say, self._failed = prepared, prepared.job, path, say, failed
        self.version = 0  # of the weights to begin with
        self.velocity: _Tensors = {}  # that the server had then
        self.tensors = self._begin(resume=resume)
        self.evaluated: EvaluationRecord | None = None
        self.model_path = path / MODEL
        self._judge = BestSoFar(self._job, *(seen_before(path, _ALL_ROUNDS) if resume else (None, 0)))
        self._evaluation = WholeEvaluation(prepared) if self._job.eval_data is not None else None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="potluck-keeping")
        self._jobs: list[Future[None]] = []
        self._evaluations, self._checkpoints = _Due(self._job.eval_every), _Due(self._job.checkpoint_every)
        self._written: set[int] = set()
        self._server: ParameterServer | None = None
        self._saver: SnapshotWriter | None = None

    @property
    def patience_is_over(self) -> bool:
        """Whether evaluations got no better for so long that training should stop."""
        return self._judge.patience_is_over

    def serve(self, server: ParameterServer, serving: Serving) -> None:
        """From now on these are the weights that are kept."""
        self._server = server
        self._saver = SnapshotWriter(server, serving.save, self._warn, self._failed)

    def wake(self) -> None:
        """Somebody pushed."""
        if self._saver is not None:
            self._saver.wake()

    def save(self, version: int, tensors: _Tensors, velocity: _Tensors) -> None:
        """A snapshot, on disk when this returns."""
        checkpoint.write(self._path / SERVER, self._position(version, 0), tensors, velocity, keep=1)

    def look(self, round: int, epoch: int, rounds_an_epoch: int) -> None:
        """Starts whatever is due after so many rounds; raises what went wrong before."""
        self._jobs = [job for job in self._jobs if not self._done(job)]
        if self._jobs:  # one thing at a time: what is late is done with newer weights
            return
        if self._evaluations.now(round, rounds_an_epoch) and self._evaluation is not None:
            self._jobs.append(self._pool.submit(self._evaluate, round, epoch, self._newest()))
        if self._checkpoints.now(round, rounds_an_epoch):
            self._jobs.append(self._pool.submit(self._write, round, epoch, self._newest()))

    def finish(self, round: int, epoch: int) -> None:
        """Waits for what is under way, and keeps the last weights."""
        self._end_saver()
        self._pool.shutdown(wait=True)
        for job in self._jobs:
            job.result()
        if self._server is not None:
            self._server.save()
        tensors = self._newest()
        if self._evaluation is not None and (self.evaluated is None or self.evaluated.round != round):
            self._evaluate(round, epoch, tensors)
        self._write(round, epoch, tensors)
        self.model_path = save_model(self._path, self._named(tensors))

    def close(self) -> None:
        """Ends what runs in the background."""
        self._end_saver()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._evaluation is not None:
            self._evaluation.close()

    def _begin(self, *, resume: bool) -> dict[str, torch.Tensor]:
        """The weights to begin with: of the last snapshot, or the model's own."""
        built = self._prepared.built
        model = ModelState(dict(built.state), {}, built.programs.aliases)
        if self._job.init is not None:
            model.load_file(Path(self._job.init))
        found = checkpoint.newest(self._path / SERVER) if resume else None
        if found is None:
            return dict(model.tensors)
        position = found.manifest.position
        check_same(
            self._path,
            ("seed", self._job.seed, position.seed),
            ("batch_size", self._job.batch_size, position.batch_size),
            ("model (digest)", self._prepared.facts.digest[:12], position.program[:12]),
        )
        _, weights, self.velocity = checkpoint.load(found.path)
        self.version = position.round
        return weights

    def _end_saver(self) -> None:
        if self._saver is not None:
            self._saver.close()

    def _newest(self) -> _Tensors:
        if self._server is None:
            return self.tensors
        return {**self.tensors, **self._server.flat.tensors(self._server.weights.vector)}

    def _evaluate(self, round: int, epoch: int, tensors: _Tensors) -> None:
        if self._evaluation is None:
            return
        began_s, at_s = time.monotonic(), self._seconds()  # when these weights were the newest
        loss, metrics, samples = self._evaluation.run(tensors)
        better = self._judge.see(round, loss, metrics)
        self.evaluated = EvaluationRecord(
            round=round, epoch=epoch, samples=samples, loss=loss, metrics=metrics, best=better is not None,
            seconds=time.monotonic() - began_s, at_s=at_s,
        )  # fmt: skip
        self._say(self.evaluated)
        if better is not None:
            self._write(round, epoch, tensors)
            if round not in self._written:
                return
            try:
                checkpoint.mark_best(self._path, better)
            except PotluckError as error:
                self._warn(error)

    def _write(self, round: int, epoch: int, tensors: _Tensors) -> None:
        """A checkpoint for the user."""
        if round in self._written:
            return
        began_s = time.monotonic()
        named = self._named(tensors)
        try:
            checkpoint.write(self._path, self._position(round, epoch), named, {}, keep=self._job.keep)
        except PotluckError as error:
            self._warn(error)
            return
        self._written.add(round)
        size, took_s = sum(tensor.nbytes for tensor in named.values()), time.monotonic() - began_s
        self._say(CheckpointRecord(round=round, bytes=size, seconds=took_s, at_s=self._seconds()))

    def _named(self, tensors: _Tensors) -> dict[str, torch.Tensor]:
        return ModelState(dict(tensors), {}, self._prepared.built.programs.aliases).weights()

    def _position(self, round: int, epoch: int) -> checkpoint.Position:
        return checkpoint.Position(
            round=round, epoch=epoch, index_in_epoch=0, seed=self._job.seed, sample_count=self._job.sample_count,
            batch_size=self._job.batch_size, program=self._prepared.facts.digest, data=self._prepared.data_digest,
        )  # fmt: skip

    def _warn(self, error: PotluckError) -> None:
        now_s = self._seconds()
        with contextlib.suppress(PotluckError):  # a full disk has no room for this either
            self._say(
                IncidentRecord(
                    kind="checkpoint", round=0, device=None, what=str(error), action="training goes on", at_s=now_s
                )
            )

    @staticmethod
    def _done(job: Future[None]) -> bool:
        if job.done():
            job.result()
            return True
        return False


class _Due:
    """Something that is done every so many rounds; by default once an epoch."""

    def __init__(self, every: int | None) -> None:
        self._every, self._next = every, -1

    def now(self, round: int, rounds_an_epoch: int) -> bool:
        """Whether it is time, after so many rounds."""
        every = self._every or rounds_an_epoch
        first, due = self._next < 0, round >= self._next
        if first or due:
            self._next = (round // every + 1) * every
        return due and not first
