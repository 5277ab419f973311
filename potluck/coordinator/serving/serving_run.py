"""A run around a parameter server: devices train on data of their own, at their own speed, and nobody waits."""

from __future__ import annotations

import contextlib
import math
import queue
import time
from pathlib import Path
from typing import Literal

from potluck.coordinator.fleet.fault_rehearsal import FaultRehearsal
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.fleet.readiness import FirstDevices
from potluck.coordinator.options import Options
from potluck.coordinator.run_folder.folder import RunFolder
from potluck.coordinator.run_folder.push_log import PUSHES, PushLog, entries
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.coordinator.serving.offering import Offering
from potluck.coordinator.serving.push_tally import SyncTally
from potluck.coordinator.serving.push_threads import Serving
from potluck.coordinator.serving.server_keeping import ServerKeeping
from potluck.coordinator.training import TrainResult
from potluck.datasets.class_names import ClassNames
from potluck.errors import DeviceError, DeviceLost, InputError, Overdue, PotluckError
from potluck.job.learning_rates import multiplier
from potluck.metrics.records import RECORDS, PaceRecord, Record, SyncAdopted, read
from potluck.paramserver.applied_pushes import missing_and_repeated
from potluck.paramserver.asked_policy import all_wait
from potluck.paramserver.messages import PushWords
from potluck.paramserver.policy_choice import Choice
from potluck.paramserver.server import ParameterServer, Reply
from potluck.program.program import encode
from potluck.tensors.model_state import buffer_names
from potluck.wire.messages import FINISHED, SAVED, Leaving, Linked, Loaded, Met, Stop, Unreachable

_LOOK_S = 0.2  # between two looks at the clock and for Ctrl-C


def begun_before(path: Path) -> SyncAdopted | None:
    """With whom a run began, if it did."""
    if not (path / RECORDS).exists():
        return None
    return next((record for record in read(path / RECORDS) if isinstance(record, SyncAdopted)), None)


def run_sync(live: LiveFleet, prepared: PreparedJob, choice: Choice, options: Options) -> TrainResult:
    """Trains a prepared job on the devices that are here, each on its own data."""
    run = SyncRun(live, prepared, choice, options)
    try:
        reason = run.train()
        live.farewell = SAVED if reason == "stopped" else FINISHED
    except BaseException as error:
        run.failed(error)
        live.fail(error)
        raise
    finally:
        live.roster.closed = True
        run.close()
    return run.result(reason)


class SyncRun:
    """The coordinator of one such run."""

    def __init__(self, live: LiveFleet, prepared: PreparedJob, choice: Choice, options: Options) -> None:
        self._live, self._prepared, self._choice, self._options = live, prepared, choice, options
        self._job = prepared.job
        path = options.run_dir
        if path is None:
            raise InputError("a run needs a folder; give --run-dir")
        self._begun = begun_before(path) if options.resume else None
        began_with = tuple(self._begun.samples) if self._begun is not None else ()
        self._broken: queue.SimpleQueue[tuple[str, int, str] | Exception] = queue.SimpleQueue()  # in other threads
        self._somebody_s = time.monotonic()
        self._folder = RunFolder(path, self._job, encode(prepared.built.programs), fsync=True)
        self._tally = tally = SyncTally(self._job, self._folder.records, self._show, options.progress)
        parts = len(began_with) or len(live.roster.specs)
        self._offering = Offering(live.server, prepared, self._folder.run_id, began_with, max(1, parts))
        self._keeping = ServerKeeping(prepared, path, tally.say, self._broken.put, tally.seconds, resume=options.resume)
        tally.samples = tally.before = self._trained_before(path) if options.resume else 0
        self._serving: Serving | None = None
        self._server: ParameterServer | None = None
        self._rehearsal: FaultRehearsal | None = None
        self._class_names = ClassNames()

    # --- from the beginning to the end

    def train(self) -> str:
        """Trains until enough samples are trained, or it is told to stop; returns why it ended."""
        roster = self._live.roster
        loaded = self._load_all(tuple(roster.specs))
        slowest_s = max(one.step_s for one in loaded.values())
        policy = self._choice.policy(slowest_s, lambda: self._tally.batches_left)
        here = {device: one.samples for device, one in loaded.items()}
        owned = self._begun.samples if self._begun is not None else here  # who is away may come back
        self._tally.epoch_samples = self._job.sample_count or sum(owned.values())
        whole = self._job.rounds * self._job.batch_size if self._job.rounds else None
        self._tally.total = whole or (self._job.epochs or 1) * self._tally.epoch_samples
        self._server = ParameterServer(
            self._keeping.tensors, policy, PushLog(self._folder.path / PUSHES, self._keeping.version),
            self._keeping.save, velocity=self._keeping.velocity,
            buffers=buffer_names(self._prepared.built.programs), now_s=time.monotonic(),
        )  # fmt: skip
        self._serving = Serving(
            self._server, self._live.link, self._folder.run_id, roster.send, self._pushed,
            lambda *lost: self._broken.put(lost), self._broken.put, self._tally.no_room, self._lr_scale,
            self._options.timeout_s,
        )  # fmt: skip
        self._keeping.serve(self._server, self._serving)
        self._tally.begins(self._prepared.facts.digest, self._choice.name, here, slowest_s)
        if self._options.chaos:
            self._rehearsal = FaultRehearsal(roster, self._options.chaos, self._tally.round, self._tally.started_s)
        roster.closed = False
        for device, one in loaded.items():
            self._enter(device, one)
        self._live.holding = False  # they know now what they go on with
        self._forget_who_is_not_here()
        return self._loop(policy.check_s)

    def _loop(self, check_s: float | None) -> str:
        roster, serving, server = self._live.roster, self._serving, self._server
        if serving is None or server is None:
            raise DeviceError("there is no server; start again")
        next_check_s = time.monotonic() + (check_s or math.inf)
        while True:
            if self._tally.samples >= self._tally.total:
                return self._end("finished", "finished")
            if self._options.should_stop():
                return self._end("stopped", "stopped")
            if self._keeping.patience_is_over:
                return self._end("early", "stopped early")
            self._look_for_anybody()
            try:
                device, message = roster.next(min(time.monotonic() + _LOOK_S, next_check_s), "training")
            except Overdue:
                pass
            except DeviceLost as lost:
                self._lost(lost.device, lost.why)
            else:
                self._hear(device, message)
            self._look_at_links()
            now_s = time.monotonic()
            if now_s >= next_check_s and check_s is not None:
                next_check_s = now_s + check_s
                self._check(server, serving, now_s)
            self._keeping.look(self._tally.round, self._tally.epoch, self._tally.rounds_an_epoch)

    def _look_for_anybody(self) -> None:
        """Where devices join from elsewhere, another may come; but not for ever."""
        now_s = time.monotonic()
        if self._live.roster.specs:
            self._somebody_s = now_s
        elif not self._options.joined or now_s - self._somebody_s > self._options.join_timeout_s:
            raise DeviceError("no device is left; go on with --resume once there is one")

    def result(self, reason: str) -> TrainResult:
        path = self._folder.path
        missing, repeated = missing_and_repeated(entries(path / PUSHES))
        evaluated = self._keeping.evaluated
        batch = self._job.batch_size  # a push is of one batch at least
        return TrainResult(
            run_dir=path, model_path=self._keeping.model_path, rounds=self._tally.round, reason=reason,
            loss=evaluated.loss if evaluated else None, metrics=dict(evaluated.metrics) if evaluated else {},
            samples_per_s=self._tally.samples_per_s, samples_lost=missing * batch, samples_doubled=repeated * batch,
        )  # fmt: skip

    def failed(self, error: BaseException) -> None:
        """Writes that it failed, and why."""
        if isinstance(error, PotluckError):
            self._tally.ended("failed", str(error))

    def close(self) -> None:
        """Ends what runs in the background; what was pushed so far is kept, if it can be."""
        if self._serving is not None:
            self._serving.close()
        self._keeping.close()
        if self._server is not None:
            with contextlib.suppress(PotluckError):
                self._server.save()
            self._server.close()
        self._folder.close()

    # --- devices come, go and say something

    def _load_all(self, devices: tuple[str, ...]) -> dict[str, Loaded]:
        options = self._options
        options.progress("devices read their data and make the model ready")
        first = FirstDevices(self._live.roster, self._offering.order, options.timeout_s, options.should_stop)
        first.load(devices, self._class_names)
        if not first.found:
            raise InputError("; ".join(_named(device, problem) for device, problem in first.refused.items()))
        for device, problem in first.refused.items():
            self._refuse(device, problem)
        return first.found

    def _hear(self, device: str, message: object) -> None:
        match message:
            case Linked():
                self._live.roster.send(device, self._offering.order(device))
            case Loaded():
                if problem := message.problem or self._class_names.problem(device, message.classes):
                    self._refuse(device, problem)
                else:
                    self._enter(device, message)
                    words = f"{device} joined with {message.samples} samples"
                    self._tally.incident("joined", device, words, "it trains too", message.samples)
            case Met():
                if self._serving is not None:
                    self._serving.met(device, message.incarnation, message.address)
            case Unreachable():
                self._drop(device, message.text)
            case Leaving():
                self._save_what_it_pushed()
                self._live.roster.release(device)
                self._gone(device)
                self._tally.incident("left", device, f"{device} leaves", "what it had trained counts; the others go on")

    def _enter(self, device: str, loaded: Loaded) -> None:
        hello = self._live.roster.hellos.get(device)
        known = hello is not None and hello.holds == self._folder.run_id
        if self._serving is not None:
            incarnation = hello.incarnation if hello is not None and known else 0
            self._serving.enter(device, loaded.samples, incarnation, loaded.step_s)
        self._tally.owned[device] = loaded.samples
        self._live.roster.watch([device])

    def _refuse(self, device: str, problem: str) -> None:
        problem = _named(device, problem)
        if device in self._live.roster.specs:
            self._live.roster.send(device, Stop(reason=problem, refused=True))
            self._live.roster.release(device)
        self._tally.incident("left", device, problem, "the others go on without it")

    def _lost(self, device: str, why: str) -> None:
        self._gone(device)
        self._tally.incident("lost", device, why, "the others go on; what it pushed counts")

    def _gone(self, device: str) -> None:
        self._tally.forget(device)
        if self._serving is not None:
            self._serving.leave(device)

    def _look_at_links(self) -> None:
        """Who cannot be reached with weights any more has to join again."""
        while True:
            try:
                broken = self._broken.get_nowait()
            except queue.Empty:
                break
            if isinstance(broken, Exception):
                raise broken
            device, incarnation, why = broken
            if self._serving is not None and self._serving.is_here(device, incarnation):
                self._drop(device, why)
        for device in self._serving.overdue() if self._serving is not None else ():
            self._drop(device, f"its link did not open in {self._options.timeout_s:.0f} s")
        if self._server is not None and (devices := self._server.stuck):
            raise all_wait(self._choice.name, devices)
        self._look_for_silence()

    def _look_for_silence(self) -> None:
        """A device that is here but never pushes holds others up, or counts for nothing."""
        silent = self._server.silent(time.monotonic(), self._options.timeout_s) if self._server is not None else {}
        for device, seconds in silent.items():
            if device in self._live.roster.specs:
                self._gone(device)
                self._refuse(
                    device, f"{device} pushed nothing for {seconds:.0f} s; look at what it does, and join again"
                )

    def _save_what_it_pushed(self) -> None:
        """Before a device goes that would push it again if the server had to restart."""
        if self._serving is not None:
            try:
                self._serving.save()
            except PotluckError as error:
                self._tally.no_room(error)

    def _drop(self, device: str, why: str) -> None:
        if device in self._live.roster.specs:
            lost = self._live.roster.drop(device, f"cannot be reached ({why})")
            self._lost(lost.device, lost.why)

    def _forget_who_is_not_here(self) -> None:
        """Workers of before a restart, of whom nothing is seen any more."""
        if self._server is None or self._serving is None:
            return
        for worker in self._server.workers:
            if worker not in self._live.roster.specs:
                self._serving.spread(self._server.leave(worker, time.monotonic()))

    # --- pushes

    def _pushed(self, said: PushWords, reply: Reply) -> None:
        if reply.status in ("applied", "skipped"):
            self._tally.pushed(said, reply)
            self._keeping.wake()

    def _check(self, server: ParameterServer, serving: Serving, now_s: float) -> None:
        tally = self._tally
        loss = tally.loss_of(server.workers)
        reply = server.check(loss, now_s)
        serving.spread(reply)
        if reply.reason and reply.paces:  # something changed
            tally.say(PaceRecord(round=tally.round, loss=loss, reason=reply.reason, at_s=tally.seconds()))

    def _lr_scale(self) -> float:
        return multiplier(self._job.schedule, self._tally.round)

    def _trained_before(self, path: Path) -> int:
        """What the weights to begin with have in them; pushes after that come again."""
        made = [entry for entry in entries(path / PUSHES) if entry.version <= self._keeping.version]
        return sum(entry.push.samples for entry in made if not entry.skipped)

    def _end(self, reason: Literal["finished", "stopped", "early"], words: str) -> str:
        if self._serving is not None:
            self._serving.close()  # what comes from now on is of no use any more
        self._keeping.finish(self._tally.round, self._tally.epoch)
        self._tally.ended(reason)
        if self._rehearsal is not None:
            self._options.progress(f"how each fault was survived: {self._rehearsal.write(self._folder.path)}")
        return words

    def _show(self, record: Record) -> None:
        """To everybody who watches, from any thread."""
        for watcher in (*self._options.watchers, *((self._rehearsal,) if self._rehearsal else ())):
            watcher.record(record)
        for callback in self._job.callbacks:
            callback(record)


def _named(device: str, problem: str) -> str:
    """A problem that says whose it is."""
    return problem if problem.split(maxsplit=1)[:1] in ([device], [f"{device}:"]) else f"{device}: {problem}"
