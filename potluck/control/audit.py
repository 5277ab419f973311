"""Proves from a run's files that every sample of every epoch was used exactly once, in the order the seed gives.

Independent on purpose: it reads ledger.jsonl and run.json itself and recomputes the sample order from its description,
sharing no code with what wrote them. Ledger line: {"round", "epoch", "term", "samples", "loss", "digest"}; an item of
`samples` is an id or [first, after the last]. The order of an epoch is the stable argsort of raw 64-bit words of
Philox seeded with SeedSequence([seed, epoch]), cut into batches; the last may be smaller.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from potluck.errors import InputError

_MOST_PROBLEMS = 20  # a ledger of another run would otherwise give one per round


@dataclass(frozen=True)
class Audit:
    """What the ledger proves."""

    rounds: int  # committed
    rounds_expected: int  # of the whole run
    epochs_complete: int
    samples: int  # used by committed rounds, all epochs together
    lost: tuple[tuple[int, int], ...]  # (epoch, sample) that a committed round should have used and none did
    doubled: tuple[tuple[int, int], ...]  # (epoch, sample) used more than once
    problems: tuple[str, ...]  # everything wrong, in words; empty: proven
    torn: bool = False  # the last line is incomplete: its round was never committed
    stopped_early: bool = False  # by its own records the run ended here on purpose, its patience being over

    @property
    def exact(self) -> bool:
        """Whether every committed round used exactly its samples."""
        return not (self.lost or self.doubled or self.problems)

    @property
    def finished(self) -> bool:
        """Whether the run was exact and came to its end."""
        return self.exact and (self.rounds == self.rounds_expected or self.stopped_early)


@dataclass(frozen=True)
class _Facts:
    samples: int
    batch_size: int
    rounds: int
    rounds_per_epoch: int
    seed: int


@dataclass(frozen=True)
class _Line:
    number: int
    round: int
    epoch: int
    term: int
    ids: tuple[int, ...]


def audit(run_dir: Path) -> Audit:
    """What the files of a run prove; an InputError if there is nothing to judge."""
    facts = _read_facts(run_dir / "run.json")
    lines, problems, torn = _read_lines(run_dir / "ledger.jsonl", facts.samples)
    _check_sequence(lines, facts, problems)
    by_epoch: dict[int, list[_Line]] = {}
    for line in lines:
        if line.epoch * facts.rounds_per_epoch < facts.rounds:  # else it is a problem, already told
            by_epoch.setdefault(line.epoch, []).append(line)
    lost: list[tuple[int, int]] = []
    doubled: list[tuple[int, int]] = []
    complete = 0
    last = max(by_epoch, default=-1)
    for epoch in range(last + 1):
        order = _order(facts, epoch)
        done = by_epoch.get(epoch, [])
        # An epoch that a later one follows must be whole; of the last one, what its rounds so far should have used.
        rounds = facts.rounds_per_epoch if epoch < last else 1 + max(ln.round for ln in done) % facts.rounds_per_epoch
        expected = set(order[: rounds * facts.batch_size])
        used = Counter(i for line in done for i in line.ids)
        lost.extend((epoch, i) for i in sorted(expected - used.keys()))
        doubled.extend((epoch, i) for i in sorted(i for i, n in used.items() if n > 1))
        complete += used == Counter(range(facts.samples))
        _check_rounds(done, order, facts, problems)
    problems.extend(f"epoch {e}: sample {i} was never used" for e, i in lost)
    problems.extend(f"epoch {e}: sample {i} was used more than once" for e, i in doubled)
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} more"]
    used_in_all = sum(len(line.ids) for line in lines)
    early = _stopped_early(run_dir / "records.jsonl", len(lines))
    return Audit(
        len(lines), facts.rounds, complete, used_in_all, tuple(lost), tuple(doubled), tuple(problems), torn, early
    )


def _check_sequence(lines: list[_Line], facts: _Facts, problems: list[str]) -> None:
    term = 0
    for expected, line in enumerate(lines):
        where = f"ledger line {line.number}"
        if line.round != expected:
            problems.append(f"{where}: round {line.round} where {expected} comes next")
        if line.round >= facts.rounds:
            problems.append(f"{where}: round {line.round} but the run has only {facts.rounds}")
        if line.epoch != line.round // facts.rounds_per_epoch:
            problems.append(f"{where}: round {line.round} says epoch {line.epoch}")
        if line.term < term:
            problems.append(f"{where}: term {line.term} after term {term}")
        term = max(term, line.term)


def _check_rounds(lines: list[_Line], order: list[int], facts: _Facts, problems: list[str]) -> None:
    for line in lines:
        index = line.round % facts.rounds_per_epoch
        expected = tuple(order[index * facts.batch_size : (index + 1) * facts.batch_size])
        if line.ids != expected:
            how = "in another order" if sorted(line.ids) == sorted(expected) else "not its own"
            problems.append(f"ledger line {line.number}: the samples of round {line.round} are {how}")


def _order(facts: _Facts, epoch: int) -> list[int]:
    words = np.random.Philox(np.random.SeedSequence([facts.seed, epoch])).random_raw(facts.samples)
    return [int(i) for i in np.argsort(words, kind="stable")]


def _read_facts(path: Path) -> _Facts:
    try:
        values = json.loads(path.read_bytes())
        samples, batch, seed = (_whole(values[k]) for k in ("samples", "batch_size", "seed"))
        epochs, rounds = values.get("epochs"), values.get("rounds")
        per_epoch = -(-samples // batch)
        total = _whole(rounds) if epochs is None else _whole(epochs) * per_epoch
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the folder of a run") from error
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{path}: is not the description of a run ({error!r}); give the folder of a run") from error
    return _Facts(samples, batch, total, per_epoch, seed)


def _read_lines(path: Path, samples: int) -> tuple[list[_Line], list[str], bool]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the folder of a run") from error
    whole, _, rest = data.rpartition(b"\n")
    lines: list[_Line] = []
    problems: list[str] = []
    for number, text in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            lines.append(_parse(number, json.loads(text), samples))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"ledger line {number}: cannot be read ({error!r})")
    return lines, problems, bool(rest)


def _parse(number: int, values: dict[str, Any], samples: int) -> _Line:
    ids: list[int] = []
    for item in values["samples"]:
        if isinstance(item, list):
            first, end = (_whole(i) for i in item)
            if end > samples:  # before it is written out: a damaged number may be huge
                raise ValueError(f"samples up to {end} of {samples}")
            ids.extend(range(first, end))
        else:
            ids.append(_whole(item))
    float.fromhex(values["loss"])
    round, epoch, term = (_whole(values[k]) for k in ("round", "epoch", "term"))
    return _Line(number, round, epoch, term, tuple(ids))


def _stopped_early(path: Path, rounds: int) -> bool:
    """Whether the last word of a run's records is that it stopped early, after so many rounds. No proof needs it."""
    try:
        last = json.loads(path.read_bytes().rstrip(b"\n").rpartition(b"\n")[2])
        said = (last["type"], last["reason"], last["round"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return said == ("run_ended", "early", rounds)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number, 0 or more")
    return value
