"""Checkpoints on disk: a folder per round, complete or absent, whose files are checked against their digests.

    checkpoints/round-000123/weights.safetensors     parameters and persistent buffers, by the unsplit model's names
                             optimizer.safetensors   "<parameter>/<slot>"
                             manifest.json           what it is, and the digests of the other two
    checkpoints/best.json                            which round was best; that checkpoint is never pruned

Only one process writes; any number may read at the same time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from potluck.errors import InputError, PotluckError
from potluck.tensors.snapshot import Tensors, parse, separate
from potluck.types import Value

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
MANIFEST = "manifest.json"
BEST = "best.json"

_OLD = ".old-"  # a checkpoint about to be replaced by another of the same round
_NEW = ".new-"  # one that is being written
_NAME = re.compile(rf"(?:{re.escape(_OLD)})?round-(\d{{6,}})")


class Position(Value, frozen=True, kw_only=True):
    """Where training stands, and in which sample order."""

    round: int  # rounds committed: training goes on with this one
    epoch: int  # of the round that comes next
    index_in_epoch: int  # of the round that comes next
    seed: int
    sample_count: int
    batch_size: int
    program: str  # digest of the program
    data: str = ""  # digest of the first samples
    staleness: int = 0  # steps that gradients are late


class FileFacts(Value, frozen=True, kw_only=True):
    """What a file must be."""

    bytes: int
    sha256: str


class Manifest(Value, frozen=True, kw_only=True):
    """What a checkpoint is."""

    version: Literal[1] = 1
    position: Position
    files: dict[str, FileFacts]
    torch: str  # version
    digest: str  # of all the above


class Best(Value, frozen=True, kw_only=True):
    """Which checkpoint was best, by what."""

    round: int
    metric: str
    value: float


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are whole."""

    path: Path
    manifest: Manifest
    skipped: tuple[str, ...] = ()  # newer ones that are damaged: one sentence each, naming the file


def write(run_dir: Path, position: Position, weights: Tensors, optimizer: Tensors, *, keep: int = 3) -> Path:
    """Write a checkpoint, prune old ones and return its folder. After a crash it is there whole, or not at all."""
    folder = run_dir / "checkpoints"
    final = folder / f"round-{position.round:06d}"
    fresh = folder / f"{_NEW}{final.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        fresh.mkdir()
        try:
            files = {n: _write_tensors(fresh / n, t) for n, t in ((WEIGHTS, weights), (OPTIMIZER, optimizer))}
            manifest = _manifest(position, files, str(torch.__version__))
            _write_synced(fresh / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
            _sync(fresh)
            if final.exists():  # the round was rolled back and trained again
                final.rename(folder / f"{_OLD}{final.name}")
            fresh.rename(final)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _sync(folder)
        _prune(folder, position.round, keep)
    except (OSError, SafetensorError) as error:
        raise PotluckError(
            f"{final}: the checkpoint cannot be written: {error}; free some space there (earlier ones are intact)"
        ) from error
    return final


def load(path: Path) -> tuple[Manifest, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Manifest, weights and optimizer state of a checkpoint; an InputError names the file that is not what it was."""
    manifest = _read_manifest(path)
    tensors = [parse(_read_checked(path / n, manifest.files[n]), str(path / n)) for n in (WEIGHTS, OPTIMIZER)]
    return manifest, tensors[0], tensors[1]


def exists(run_dir: Path) -> bool:
    """Whether a run has one, damaged or not."""
    return any(_candidates(run_dir / "checkpoints"))


def newest(run_dir: Path, *, at_most: int | None = None) -> Checkpoint | None:
    """The newest whole checkpoint (of at most that many rounds), or None if there was never one.

    Damaged ones are skipped and listed in the result; an InputError if there are only damaged ones.
    """
    skipped: list[str] = []
    for round, path in sorted(_candidates(run_dir / "checkpoints"), reverse=True):
        if at_most is not None and round > at_most:
            continue
        try:
            manifest = _read_manifest(path)
            if manifest.position.round != round:
                raise InputError(f"{path / MANIFEST}: says round {manifest.position.round}; delete {path}")
            for name in (WEIGHTS, OPTIMIZER):
                _check_digest(path / name, manifest.files[name])
        except InputError as error:
            skipped.append(str(error))
        else:
            return Checkpoint(path, manifest, tuple(skipped))
    if skipped:
        raise InputError(f"no whole checkpoint is left: {skipped[0]}; restore one, or start a new run")
    return None


def mark_best(run_dir: Path, best: Best) -> None:
    """Remember that this round's checkpoint is the best one; it is kept until another is."""
    folder = run_dir / "checkpoints"
    fresh = folder / f"{_NEW}{BEST}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_synced(fresh, msgspec.json.encode(best) + b"\n")
        fresh.rename(folder / BEST)
        _sync(folder)
    except OSError as error:
        raise PotluckError(f"{folder / BEST}: cannot be written: {error.strerror}; free some space there") from error


def best(run_dir: Path) -> Best | None:
    """Which checkpoint is the best one, or None."""
    path = run_dir / "checkpoints" / BEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Best)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}; delete it, the next evaluation writes it again") from error


def best_path(run_dir: Path) -> Path | None:
    marked = best(run_dir)
    return run_dir / "checkpoints" / f"round-{marked.round:06d}" if marked else None


def _candidates(folder: Path) -> list[tuple[int, Path]]:
    found = [(m, p) for p in folder.glob("*round-*") if (m := _NAME.fullmatch(p.name)) and p.is_dir()]
    return [(int(match[1]), path) for match, path in found]


def _sweep(folder: Path) -> None:
    """Remove what an interrupted write left; a checkpoint that lost its replacement comes back."""
    for path in folder.glob(f"{_NEW}round-*"):
        shutil.rmtree(path)
    for path in folder.glob(f"{_OLD}round-*"):
        final = folder / path.name.removeprefix(_OLD)
        if final.exists():
            shutil.rmtree(path)
        else:
            path.rename(final)


def _prune(folder: Path, written: int, keep: int) -> None:
    """Keep the newest and the best. Rounds beyond the one just written belong to a future that was given up."""
    _sweep(folder)
    try:
        marked = best(folder.parent)
    except InputError:
        return  # which one is the best is not known, so none may go
    rounds = sorted((r for r, _ in _candidates(folder) if r <= written), reverse=True)
    kept = {*rounds[:keep], *([marked.round] if marked else [])}
    for round, path in _candidates(folder):
        if round not in kept:
            shutil.rmtree(path)


def _write_tensors(path: Path, tensors: Tensors) -> FileFacts:
    save_file(separate(tensors), path)
    _sync(path)
    size, digest = _measure(path)
    return FileFacts(bytes=size, sha256=digest)


def _write_synced(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _measure(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _manifest(position: Position, files: dict[str, FileFacts], version: str) -> Manifest:
    digest = hashlib.sha256(msgspec.json.encode((position, sorted(files.items()), version))).hexdigest()
    return Manifest(position=position, files=files, torch=version, digest=digest)


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    try:
        _refuse_link(file)
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}; use another checkpoint") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: is damaged: {error}; use another checkpoint") from error
    if manifest != _manifest(manifest.position, manifest.files, manifest.torch):
        raise InputError(f"{file}: is damaged (its digest differs); use another checkpoint")
    if set(manifest.files) != {WEIGHTS, OPTIMIZER}:
        raise InputError(f"{file}: names files {sorted(manifest.files)}; expected {OPTIMIZER} and {WEIGHTS}")
    return manifest


def _read_checked(file: Path, facts: FileFacts) -> bytes:
    try:
        _refuse_link(file)
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}; use another checkpoint") from error
    _compare(file, facts, len(data), hashlib.sha256(data).hexdigest())
    return data


def _check_digest(file: Path, facts: FileFacts) -> None:
    try:
        _refuse_link(file)
        size, digest = _measure(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}; use another checkpoint") from error
    _compare(file, facts, size, digest)


def _compare(file: Path, facts: FileFacts, size: int, digest: str) -> None:
    if size != facts.bytes:
        raise InputError(f"{file}: is damaged ({size} bytes instead of {facts.bytes}); use another checkpoint")
    if digest != facts.sha256:
        raise InputError(f"{file}: is damaged (its digest differs from the manifest's); use another checkpoint")


def _refuse_link(file: Path) -> None:
    if file.is_symlink():
        raise InputError(f"{file}: is a symbolic link; put the file itself there")
