"""Sums gradients over everybody who holds a parameter: the members of a group, and stages that share a tied weight.

Every parameter has one device that adds up, in a fixed order, and gives the sum back (`device/stage/sums.py` says
who). So all holders get the same bits, and no device carries more than its part of the traffic. On a CPU this goes on
during the last backward of a round: whenever a bucket of gradients is complete, it is sent, and what has arrived is
added up.
"""

from __future__ import annotations

from collections.abc import Callable

from potluck.compute.running_buffers import Statistics
from potluck.device.stage.bundles import Bundle, take, total
from potluck.device.stage.exchange import Site
from potluck.device.stage.statistics import merged, read, written
from potluck.device.stage.sums import ParameterBucket, Sums
from potluck.tensors.parcels import pack, unpack
from potluck.wire.link import Tag


class Reducer:
    """One device's part in the sums of a plan, round by round: `begin`, `ready` as gradients become so, `finish`."""

    def __init__(self, site: Site, sums: Sums) -> None:
        self._site = site
        self._buckets = [b for b in sums.buckets if site.me in b.holders]
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.names}
        self._mine = [b for b in self._buckets if b.adder == site.me]

    @property
    def busy(self) -> bool:
        return bool(self._buckets)

    def begin(self, round: int) -> None:
        """Forgets the round before."""
        self._round = round
        self._missing = {b.number: set(b.names) for b in self._buckets}
        self._offered: set[int] = set()
        self._parts: dict[int, dict[str, Bundle]] = {b.number: {} for b in self._mine}
        self._told: dict[str, Statistics] = {}
        self._added: dict[int, Bundle] = {}

    def ready(self, name: str) -> None:
        """This parameter's gradient is what it will be. Called during the last backward, if at all; never waits."""
        bucket = self._bucket_of.get(name)
        if bucket is None:
            return
        missing = self._missing[bucket.number]
        missing.discard(name)
        if not missing and bucket.number not in self._offered:
            self._offer(bucket)
        for mine in self._mine:
            if mine.number in self._offered and mine.number not in self._added:
                self._collect(mine, wait=False)

    def finish(self, meanwhile: Callable[[], None]) -> None:
        """Replaces the gradients by their sums, and statistics by those of the group.

        `meanwhile` is called when this device's own sums are there and those of the others are still on their way.
        """
        stage = self._site.stage
        for bucket in self._buckets:
            if bucket.number not in self._offered:
                self._offer(bucket)
        for bucket in self._mine:
            if bucket.number not in self._added:
                self._collect(bucket, wait=True)
            stage.set_gradients(self._round, self._added[bucket.number].by_name(stage.parameters))
        meanwhile()
        for bucket in self._buckets:
            if bucket.adder != self._site.me:
                found = self._receive(bucket, bucket.adder, "sum")
                stage.set_gradients(self._round, found.by_name(stage.parameters))
                if bucket.statistics:
                    stage.running.statistics[self._round] = self._told[bucket.adder]

    def _offer(self, bucket: ParameterBucket) -> None:
        """Hands this device's gradients to whoever adds them up."""
        stage, me = self._site.stage, self._site.me
        self._offered.add(bucket.number)
        weights = stage.versions.for_step(self._round)
        own = Bundle.of(bucket.names, {name: weights[name].grad for name in bucket.names})
        if bucket.adder == me:
            self._parts[bucket.number][me] = own
            if bucket.statistics:
                self._told[me] = stage.running.statistics.get(self._round, {})
        else:
            self._send(bucket, "reduce", own, [bucket.adder])

    def _collect(self, bucket: ParameterBucket, *, wait: bool) -> None:
        """Takes the others' gradients of a bucket; when all are there, adds them up and gives everybody the sums."""
        site, parts = self._site, self._parts[bucket.number]
        for peer in bucket.holders:
            if peer not in parts:
                if not wait and not site.link.arrived(peer, self._tag(bucket, "reduce")):
                    return
                parts[peer] = self._receive(bucket, peer, "reduce")
        self._added[bucket.number] = total([parts[device] for device in bucket.holders], site.stage.parameters)
        parts.clear()
        if bucket.statistics:
            site.stage.running.statistics[self._round] = merged([self._told[device] for device in bucket.holders])
        self._send(bucket, "sum", self._added[bucket.number], [d for d in bucket.holders if d != site.me])

    def _tag(self, bucket: ParameterBucket, phase: str) -> Tag:
        return Tag(phase, self._round, bucket.number)

    def _send(self, bucket: ParameterBucket, phase: str, bundle: Bundle, peers: list[str]) -> None:
        more = written(self._site.stage.running.statistics.get(self._round, {})) if bucket.statistics else []
        message = pack([*bundle.parts, *more])
        for peer in peers:
            self._site.link.send(peer, self._tag(bucket, phase), message, self._site.timeout_s)

    def _receive(self, bucket: ParameterBucket, peer: str, phase: str) -> Bundle:
        site = self._site
        message = site.link.receive(peer, self._tag(bucket, phase), site.timeout_s)
        parts = iter(unpack(message, site.stage.device, copy=False))
        bundle = take(parts, bucket.names, site.stage.parameters, peer)
        if bucket.statistics:
            self._told[peer] = read(list(parts), peer)
        return bundle
