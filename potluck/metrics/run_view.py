"""What a display shows of a run: records in, numbers and words out. No terminal, no clock."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from potluck.metrics.lanes import busy_parts
from potluck.metrics.records import (
    CheckpointRecord,
    CopyRecord,
    EvaluationRecord,
    IdleDevices,
    IncidentRecord,
    PaceRecord,
    PlanAdopted,
    PushRecord,
    Record,
    RunEnded,
    RunStarted,
    SyncAdopted,
)
from potluck.types import IdleReason, Plan, RoundRecord
from potluck.units import duration_text, size_text

RECENT_ROUNDS = 30  # over which the rate is taken: it follows a change in seconds, and does not flicker
KEPT_LOSSES = 4000  # the newest: many more than a terminal has columns
KEPT_MESSAGES = 50  # the newest: more than any display shows
LANE_INERTIA = 0.8  # a lane moves a fifth of the way to each round's value, so that it can be read


@dataclass
class Lane:
    """One device, as drawn."""

    where: str  # "stage 1 of 3 · blocks 0-4"
    busy: float = 0.0  # the part of a round that it computes, smoothed
    judged: str = ""  # the loss that it found itself, if it did


@dataclass
class RunView:
    """Everything a display needs; `now_s` is any clock that goes forward."""

    first_round: int = 0
    rounds: int = 0
    done: int = 0  # rounds committed
    epoch: int = 0
    rounds_per_epoch: int = 1
    loss: float | None = None
    learning_rate: float | None = None
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LOSSES))
    lanes: dict[str, Lane] = field(default_factory=dict)
    idle: dict[str, IdleReason] = field(default_factory=dict)
    evaluation: EvaluationRecord | None = None
    plan_reason: str = ""  # why this plan, if nobody gave it
    policy: str = ""  # that decides how often devices push to a parameter server, where there is one
    best_metric: str = ""  # what decides which evaluation is the best, if known
    checkpoint: str = ""
    copy: str = ""
    messages: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_MESSAGES))
    stopping: bool = False
    ended: bool = False
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS + 1))
    _started_s: float = 0.0

    @property
    def training(self) -> bool:
        return self.rounds > 0 and not self.ended

    @property
    def epochs(self) -> int:
        """Epochs of the whole run; the last may not be complete."""
        return -(-self.rounds // self.rounds_per_epoch)

    def see(self, record: Record, now_s: float) -> None:
        match record:
            case RunStarted():
                self.first_round = self.done = record.round
                self.rounds = record.rounds
                self.ended = False  # it may go on after an end
                self._recent.clear()
                self.rounds_per_epoch = -(-record.samples // record.batch_size)
                self._started_s = now_s
                self._recent.append((now_s, 0))
            case PlanAdopted():
                self._adopt(record)
            case IdleDevices():
                self.idle = record.idle
            case RoundRecord():
                self.done, self.epoch = record.round + 1, record.epoch
                self.loss, self.learning_rate = record.loss, record.learning_rate
                self.losses.append(record.loss)
                self._recent.append((now_s, record.samples))
                self._see_busy(busy_parts(record))
            case SyncAdopted():
                self.policy = record.policy
                self.plan_reason = f"{record.policy}: {record.reason}"
                self.lanes = {device: Lane(f"{count} samples of its own") for device, count in record.samples.items()}
            case PushRecord():
                self._push(record, now_s)
            case PaceRecord():
                self.plan_reason = f"{self.policy}: {record.reason}"
            case EvaluationRecord():
                self.evaluation = record
            case IncidentRecord():
                self.messages.append(f"round {record.round}: {record.what}; {record.action}")
                self._see_coming_and_going(record)
            case CheckpointRecord():
                self.checkpoint = f"after round {record.round}, {size_text(record.bytes)}"
            case CopyRecord():
                again = f"; again {duration_text(record.period_s)} later" if record.period_s >= 1 else ""
                self.copy = f"of round {record.round} on a second device, after {duration_text(record.seconds)}{again}"
            case RunEnded():
                self.ended = True

    def _push(self, record: PushRecord, now_s: float) -> None:
        self.done, self.epoch = record.round, record.epoch
        if record.loss is not None:
            self.loss = record.loss
            self.losses.append(record.loss)
        self._recent.append((now_s, record.samples))
        lane = self.lanes.setdefault(record.device, Lane(""))
        if record.held_out_samples:
            loss = "not finite" if record.held_out_loss is None else f"{record.held_out_loss:.4f}"
            lane.judged = f"{loss} by its own samples · "
        lane.where = f"{lane.judged}push {record.version} · {record.steps} steps · {record.reason}"
        if record.skipped:
            self.messages.append(f"round {record.round}: {record.skipped}; it was left out")

    def _see_coming_and_going(self, record: IncidentRecord) -> None:
        """Around a parameter server devices come and go as they are; elsewhere the next plan says who is there."""
        if not self.policy or record.device is None:
            return
        if record.kind == "joined":
            self.lanes[record.device] = Lane(f"{record.samples} samples of its own")
        elif record.kind in ("left", "lost") and record.device in self.lanes:
            self.lanes[record.device] = Lane(f"gone since round {record.round}")

    def _see_busy(self, busy: dict[str, float]) -> None:
        for device, part in busy.items():
            lane = self.lanes.setdefault(device, Lane(""))
            lane.busy = part if self.done <= self.first_round + 1 else _towards(lane.busy, part)

    def kept(self) -> dict[str, str]:
        """What the run has to show so far, by name: its last evaluation, checkpoint and copy, if there are any."""
        judged = self.evaluation
        text = "" if judged is None else f"{evaluation_text(judged, self.best_metric)}, after round {judged.round}"
        found = {"evaluation": text, "checkpoint": self.checkpoint, "copy": self.copy}
        return {name: text for name, text in found.items() if text}

    def samples_per_s(self) -> float | None:
        """Samples per second over the last rounds, evaluations and all."""
        if len(self._recent) < 2:
            return None
        seconds = self._recent[-1][0] - self._recent[0][0]
        return sum(n for _, n in list(self._recent)[1:]) / seconds if seconds > 0 else None

    def seconds_left(self, now_s: float) -> float | None:
        """How long the rest will take if it goes on like this."""
        trained = self.done - self.first_round
        if trained < 3:
            return None
        return (now_s - self._started_s) / trained * (self.rounds - self.done)

    def _adopt(self, record: PlanAdopted) -> None:
        plan = record.plan
        self.plan_reason = "" if record.reason == "given" else record.reason
        self.lanes, self.idle = {}, {}
        for index, stage in enumerate(plan.stages):
            first, end = stage.blocks
            blocks = f"block {first}" if end == first + 1 else f"blocks {first}-{end - 1}"
            for member in stage.group:
                share = f" · {share_text(plan, index, member.share)}" if len(stage.group) > 1 else ""
                where = f"stage {index + 1} of {len(plan.stages)} · {blocks}{share}"
                self.lanes[member.device] = Lane(where)


def evaluation_text(record: EvaluationRecord, best_metric: str = "") -> str:
    """An evaluation in a few words; `best_metric` is what decides which one is the best."""
    parts = [f"{name} {value:.4g}" for name, value in record.metrics.items()] + [f"loss {record.loss:.4g}"]
    best = " ".join(["best", best_metric, "so far"] if best_metric else ["best so far"])
    return " · ".join([*parts, best] if record.best else parts)


def progress_text(view: RunView, left_s: float | None) -> str:
    """How far a run is, how fast, and how long the rest takes, if that is known."""
    parts = [f"{view.done}/{view.rounds}", f"epoch {view.epoch + 1}/{view.epochs}"]
    if view.loss is not None:
        parts.append(f"loss {view.loss:.4f}")
    if (rate := view.samples_per_s()) is not None:
        parts.append(f"{rate:,.0f} samples/s")
    if left_s is not None:
        parts.append(f"{duration_text(left_s)} left")
    return " · ".join(parts)


def sparkline(values: list[float], width: int) -> str:
    """The values as a line of bars at most so wide, lowest to highest; each bar is the mean of its values.

    Where all are positive the scale is logarithmic: a loss falls fast at first, and what comes later matters too.
    """
    finite = [v for v in values if math.isfinite(v)]
    if not finite or width < 1:
        return ""
    count = min(width, len(finite))
    cuts = [len(finite) * i // count for i in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(cuts)]
    if min(means) > 0:
        means = [math.log(m) for m in means]
    low, high = min(means), max(means)
    step = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[min(7, int((m - low) / step * 8))] for m in means)


def _towards(old: float, new: float) -> float:
    return LANE_INERTIA * old + (1 - LANE_INERTIA) * new


def share_text(plan: Plan, stage: int, share: int) -> str:
    """What a device takes of a stage that others hold too."""
    by_samples = plan.stages[stage].sharing == "samples"
    return f"{share} of {plan.micro_batch_size} rows" if by_samples else f"{share} of {plan.micro_batches} turns"
