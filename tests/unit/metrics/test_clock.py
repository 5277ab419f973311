"""When records were written, from the records alone."""

from potluck.metrics.clock import RecordClock
from potluck.metrics.records import (
    CheckpointRecord,
    EvaluationRecord,
    IncidentRecord,
    PlanAdopted,
    Record,
    RunEnded,
    RunStarted,
)
from potluck.types import Member, Plan, RoundRecord, Stage

STARTED = RunStarted(
    round=0, rounds=9, samples=40, batch_size=8, micro_batch_size=2, seed=1, program="", devices=("a",)
)
PLAN = Plan(micro_batch_size=2, micro_batches=4, stages=(Stage(blocks=(0, 3), group=(Member(device="a", share=4),)),))


def _round(number: int, seconds: float) -> RoundRecord:
    return RoundRecord(round=number, epoch=0, term=1, samples=8, loss=1.0, learning_rate=0.1, seconds=seconds)


def _times(*records: Record) -> list[float]:
    clock = RecordClock()
    return [clock.at(record) for record in records]


def test_rounds_follow_each_other_and_an_evaluation_takes_time_of_its_own():
    judged = EvaluationRecord(round=2, epoch=0, samples=5, loss=1.0, metrics={}, best=True, seconds=3.0, at_s=5.0)
    assert _times(STARTED, _round(0, 1.0), _round(1, 1.0), judged, _round(2, 1.0)) == [0.0, 1.0, 2.0, 5.0, 6.0]


def test_a_checkpoint_in_the_middle_of_a_round_does_not_make_it_longer():
    saved = CheckpointRecord(round=1, bytes=1, seconds=0.1, at_s=1.7)
    assert _times(STARTED, _round(0, 1.0), saved, _round(1, 1.0), _round(2, 1.0)) == [0.0, 1.0, 1.7, 2.0, 3.0]


def test_after_a_change_of_plans_rounds_count_from_there():
    lost = IncidentRecord(kind="lost", round=1, device="b", what="", action="", at_s=1.5)
    adopted = PlanAdopted(term=2, round=1, plan=PLAN, reason="", at_s=4.0)
    assert _times(STARTED, _round(0, 1.0), lost, adopted, _round(1, 1.0)) == [0.0, 1.0, 1.5, 4.0, 5.0]


def test_a_run_that_is_resumed_begins_at_nothing():
    ended = RunEnded(round=1, reason="stopped", message="", seconds=2.0, at_s=2.0)
    assert _times(STARTED, _round(0, 1.0), ended, STARTED, _round(1, 1.0)) == [0.0, 1.0, 2.0, 0.0, 1.0]
