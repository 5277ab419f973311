"""The folder of a run: facts, records, ledger, program, checkpoints, final model."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from potluck.control.ledger import RunFacts
from potluck.coordinator.run_folder.folder_names import MODEL
from potluck.coordinator.run_folder.ledger_file import LEDGER, RUN, Ledger, write_facts
from potluck.coordinator.run_folder.term_log import TERMS, TermLog, read_terms
from potluck.errors import InputError, PotluckError
from potluck.job.job import Job
from potluck.metrics.records import RECORDS, RecordLog, end_of, has_ended
from potluck.tensors import checkpoint
from potluck.tensors.snapshot import separate
from potluck.types import Profile

PROGRAM = "program.json"
PROFILE = "profile.json"


class RunFolder:
    """Files of one run, open while it trains."""

    def __init__(self, path: Path, job: Job, program: bytes, *, fsync: bool) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path)
            (path / PROGRAM).write_bytes(program)
            facts = RunFacts(
                samples=job.sample_count, batch_size=job.batch_size, epochs=job.epochs, rounds=job.rounds,
                seed=job.seed, staleness=job.staleness,
            )  # fmt: skip
            self.run_id = known_run(path) or secrets.token_hex(8)
            write_facts(path, msgspec.structs.replace(facts, run=self.run_id))
            self.terms = TermLog(path / TERMS)
            self.ledger = Ledger(path / LEDGER, fsync=fsync)
            self.records = RecordLog(path / RECORDS)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}); give another --run-dir") from None

    def keep_profile(self, profile: Profile | None) -> None:
        """For a coordinator that comes back: nobody has to measure again."""
        if profile is not None:
            fresh = self.path / f".new-{PROFILE}"
            try:
                fresh.write_bytes(msgspec.json.encode(profile))
                fresh.rename(self.path / PROFILE)
            except OSError:
                fresh.unlink(missing_ok=True)  # on a full disk, it is measured again

    def close(self) -> None:
        self.terms.close()
        self.ledger.close()
        self.records.close()
        os.close(self._lock)


def kept_profile(path: Path) -> Profile | None:
    """The profile that a run was planned by, if it was."""
    try:
        return msgspec.json.decode((path / PROFILE).read_bytes(), type=Profile)
    except (OSError, msgspec.MsgspecError, PotluckError):
        return None


def known_run(path: Path) -> str:
    """The name that devices know the run in a folder by; empty if there is none."""
    try:
        return _facts(path).run
    except (OSError, msgspec.MsgspecError):
        return ""


def _facts(path: Path) -> RunFacts:
    return msgspec.json.decode((path / RUN).read_bytes(), type=RunFacts)


def _lock(path: Path) -> int:
    """Holds the folder for this process: two coordinators in one folder would destroy each other's run."""
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InputError(f"{path}: another process trains in this folder; stop it, or give another --run-dir") from None
    return lock


def save_model(path: Path, weights: Mapping[str, torch.Tensor]) -> Path:
    """Writes the final model, atomically, under the unsplit module's names."""
    final, fresh = path / MODEL, path / f".new-{MODEL}"
    try:
        save_file(separate(weights), fresh)
        fresh.rename(final)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)  # on a full disk, what is useless must not take room
        raise PotluckError(
            f"{final}: cannot be written ({error}); free some space there, then run once more with --resume"
        ) from error
    return final


class Resumed(NamedTuple):
    """Where a run goes on."""

    checkpoint: checkpoint.Checkpoint
    last_term: int  # above which the next one is: devices may hold states of any


def load_resume(path: Path, digest: str, data_digest: str, job: Job) -> Resumed:
    """The checkpoint to go on from; refuses one of another model or another order of samples.

    A checkpoint newer than the ledger does not count: after a power cut the ledger says what was committed.
    """
    if not (path / LEDGER).is_file():
        raise InputError(f"{path}: no run to resume ({LEDGER} is missing); start without --resume")
    ledger = Ledger(path / LEDGER)
    try:
        found = checkpoint.newest(path, at_most=ledger.rounds)
        if found is None:
            raise InputError(f"{path}: no checkpoint to resume from; start a new run in another --run-dir")
        position = found.manifest.position
        check_same(
            found.path,
            ("seed", job.seed, position.seed),
            ("batch_size", job.batch_size, position.batch_size),
            ("staleness", job.staleness, position.staleness),
            ("number of samples", job.sample_count, position.sample_count),
            ("model (digest)", digest[:12], position.program[:12]),
            ("first samples (digest)", data_digest[:12], position.data[:12] or data_digest[:12]),
        )
        if position.round > _rounds(job):
            raise InputError(
                f"{found.path}: is at round {position.round}, the job now ends at {_rounds(job)}; give it more rounds"
            )
        last = position.round - 1
        known = read_terms(path / TERMS)
        return Resumed(found, max([0, *known, *([ledger.entry(last).term] if last >= 0 else [])]))
    finally:
        ledger.close()


def check_resumable(path: Path, digest: str, data_digest: str, job: Job) -> None:
    """An InputError if the run in a folder cannot go on with this job: better before devices are asked for."""
    if has_ended(path / RECORDS) or checkpoint.newest(path) is not None or not read_terms(path / TERMS):
        load_resume(path, digest, data_digest, job)
        check_unfinished(path, job)
        return
    try:  # no checkpoint yet: devices may have held on
        facts = _facts(path)
        program = hashlib.sha256((path / PROGRAM).read_bytes()).hexdigest()
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path}: no run to resume ({error}); start without --resume") from None
    check_same(
        path,
        ("seed", job.seed, facts.seed),
        ("batch_size", job.batch_size, facts.batch_size),
        ("staleness", job.staleness, facts.staleness),
        ("number of samples", job.sample_count, facts.samples),
        ("model (digest)", digest[:12], program[:12]),
    )


def check_unfinished(path: Path, job: Job) -> None:
    """An InputError if the run in a folder has trained all that the job asks for."""
    end = end_of(path / RECORDS)
    if end is None or end.reason != "finished" or not (path / MODEL).is_file():
        return
    facts = _facts(path)
    if (job.epochs, job.rounds) == (facts.epochs, facts.rounds) or 0 < _rounds(job) <= end.round:
        field = "epochs" if job.rounds is None else "rounds"
        raise InputError(
            f"--resume: {path} is finished, after {end.round} rounds; its model is {path / MODEL}. "
            f"To train on, give the job more than {field}={getattr(job, field)}"
        )


def _rounds(job: Job) -> int:
    return job.rounds or -(-job.sample_count // job.batch_size) * (job.epochs or 0)


def check_same(path: Path, *compared: tuple[str, object, object]) -> None:
    """An InputError if anything is not as it was in the job that a run was made with: its name, what it is, and was."""
    for name, here, there in compared:
        if here != there:
            raise InputError(
                f"{path}: made with {name} {there}, the job now has {here}; "
                "give --resume the job it was made with, or train this one in another --run-dir"
            )
