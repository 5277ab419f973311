"""Steps of the event simulation, and those of summing gradients: as `device/stage/reduce.py` does it, in virtual
time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from potluck.plan.cost.traffic import Messages, PlannedMessage

SUMMING = ("reduce", "sum")  # the phases of summing gradients
MessageKey = tuple[object, ...]  # what names a message


class SimulatedStep(NamedTuple):
    """One action with all it needs."""

    kind: str
    round: int
    micro_batch: int
    needs: tuple[MessageKey, ...]
    seconds: float
    sends: tuple[tuple[MessageKey, PlannedMessage], ...]


class SummingSteps:
    """One device's part in summing the gradients of a round."""

    def __init__(self, device: str, round: int, messages: Messages, arrived: Mapping[MessageKey, float]) -> None:
        self.device, self.round, self._messages, self._arrived = device, round, messages, arrived
        self.buckets = messages.buckets(device)
        self._group = messages.group(device)
        self._mine = [number for number, bucket in enumerate(self.buckets) if bucket.adder == device]
        self._offered: set[int] = set()

    def offer(self, number: int, j: int) -> Iterator[SimulatedStep]:
        """Sends this device's part of a bucket."""
        self._offered.add(number)
        adder = self.buckets[number].adder
        if adder != self.device:
            yield self._send("backward", j, "reduce", number, [adder])

    def poll(self, j: int, now: float) -> Iterator[SimulatedStep]:
        """Adds up what is complete by now."""
        for number in [number for number in self._mine if number in self._offered]:
            if all(self._arrived.get(key, float("inf")) <= now for key in self._parts(number)):
                yield from self._add("backward", j, number)

    def finish(self, j: int) -> Iterator[SimulatedStep]:
        """Adds up the rest, sums tied weights, and takes the sums of others."""
        for number in range(len(self.buckets)):
            if number not in self._offered:
                yield from self.offer(number, j)
        for number in list(self._mine):
            yield from self._add("reduce", j, number)
        for number, bucket in enumerate(self.buckets):
            if bucket.adder != self.device:
                key = ("sum", self.round, number, bucket.adder, self.device)
                parcel = self._messages.bucket("sum", bucket, bucket.adder, self.device)
                yield SimulatedStep(
                    "reduce", self.round, j, (key,), self._messages.handling_s(self.device, [parcel]), ()
                )
        for phase in SUMMING:
            out, back = self._messages.tied(self.device, phase)
            sends = tuple(((phase, self.round, p.source, p.target), p) for p in out)
            yield SimulatedStep("reduce", self.round, j, (), self._messages.handling_s(self.device, out), sends)
            needs = tuple((phase, self.round, p.source, p.target) for p in back)
            yield SimulatedStep("reduce", self.round, j, needs, self._messages.handling_s(self.device, back), ())

    def _parts(self, number: int) -> tuple[MessageKey, ...]:
        return tuple(("reduce", self.round, number, d, self.device) for d in self._group if d != self.device)

    def _add(self, kind: str, j: int, number: int) -> Iterator[SimulatedStep]:
        self._mine.remove(number)
        others = [d for d in self._group if d != self.device]
        parcels = [self._messages.bucket("reduce", self.buckets[number], d, self.device) for d in others]
        seconds = self._messages.handling_s(self.device, parcels)
        yield SimulatedStep(kind, self.round, j, self._parts(number), seconds, ())
        yield self._send(kind, j, "sum", number, others)

    def _send(self, kind: str, j: int, phase: str, number: int, targets: Sequence[str]) -> SimulatedStep:
        parcels = [self._messages.bucket(phase, self.buckets[number], self.device, target) for target in targets]
        sends = tuple(((phase, self.round, number, p.source, p.target), p) for p in parcels)
        return SimulatedStep(kind, self.round, j, (), self._messages.handling_s(self.device, parcels), sends)
