"""Records are read back as they were written, and add up."""

import math
from typing import Any

import pytest

from potluck.errors import InputError
from potluck.metrics import folds
from potluck.metrics.records import (
    CheckpointRecord,
    EvaluationRecord,
    IdleDevices,
    IncidentRecord,
    PlanAdopted,
    RecordLog,
    RunEnded,
    RunStarted,
    decode,
    encode,
    read,
    read_from,
)
from potluck.types import IdleReason, Member, Plan, RoundRecord, Stage


def done(round, *, loss=1.0, seconds=0.5, samples=10, term=1):
    return RoundRecord(
        round=round,
        epoch=0,
        term=term,
        samples=samples,
        loss=loss,
        learning_rate=0.1,
        seconds=seconds,
        gradient_norm=None,
    )


def judged(round, loss, *, best=False, **metrics):
    return EvaluationRecord(
        round=round, epoch=0, samples=5, loss=loss, metrics=metrics, best=best, seconds=0.1, at_s=float(round)
    )


PLAN = Plan(micro_batch_size=2, micro_batches=4, stages=(Stage(blocks=(0, 3), group=(Member(device="a", share=4),)),))
LOST = IncidentRecord(
    kind="lost", round=2, device="b", what="b fell silent", action="a takes over", at_s=3.5, replayed_rounds=1
)
EVERY = [
    RunStarted(
        round=0, rounds=9, samples=40, batch_size=8, micro_batch_size=2, seed=1, program="d", devices=("a", "b")
    ),
    PlanAdopted(term=1, round=0, plan=PLAN, reason="the only one", at_s=0.1),
    done(0, loss=2.0),
    done(1, loss=1.5),
    judged(2, 1.6, best=True, accuracy=0.5),
    done(2, loss=1.4),
    LOST,
    done(2, loss=1.2, seconds=2.0, term=2),
    judged(3, 1.7, accuracy=0.4),
    CheckpointRecord(round=3, bytes=100, seconds=0.01, at_s=4.0),
    IdleDevices(term=1, round=3, idle={"b": IdleReason(why="it is slow", until="a is lost")}, at_s=4.0),
    RunEnded(round=3, reason="stopped", message="Ctrl-C", seconds=5.0, at_s=5.0),
]


@pytest.fixture
def path(tmp_path):
    log = RecordLog(tmp_path / "records.jsonl")
    for record in EVERY:
        log.append(record)
    log.close()
    return tmp_path / "records.jsonl"


def test_every_kind_of_record_comes_back(path):
    assert list(read(path)) == EVERY


def test_a_line_says_its_type():
    assert b'"type":"round"' in encode(done(0))
    assert b'"type":"incident"' in encode(LOST)


def test_numbers_that_json_lacks_come_back():
    record: Any = decode(encode(judged(1, math.nan, accuracy=math.inf, other=-math.inf)))
    assert math.isnan(record.loss)
    assert record.metrics == {"accuracy": math.inf, "other": -math.inf}
    record = decode(encode(done(1, loss=math.nan)))
    assert math.isnan(record.loss)


def test_a_torn_last_line_is_left_out_and_not_continued(path):
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"rou')
    assert list(read(path)) == EVERY
    log = RecordLog(path)
    log.append(done(3))
    assert list(read(path)) == [*EVERY, done(3)]
    log.append(done(4))
    assert list(read(path)) == [*EVERY, done(3), done(4)]


def test_a_run_can_be_followed(path):
    records, offset = read_from(path, 0)
    assert len(records) == len(EVERY)
    assert read_from(path, offset) == ([], offset)
    log = RecordLog(path)
    log.append(done(3))
    assert read_from(path, offset)[0] == [done(3)]


def test_a_damaged_line_is_named(path):
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong in (b'{"type":"unheard"}\n', b'{"type":"round"}\n', b"\xff\n", b"[]\n"):
        path.write_bytes(lines[0] + wrong + lines[2])
        with pytest.raises(InputError, match=r"records\.jsonl, line 2"):
            list(read(path))


def test_a_round_counts_once_for_throughput_as_it_was_trained_last():
    assert folds.throughput(EVERY) == 30 / 3.0
    assert folds.throughput([]) == 0
