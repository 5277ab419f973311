"""Profiles a fleet: every device measures its blocks at once, then the links are measured pair by pair.

Who is lost meanwhile is done without, as in training.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from safetensors.torch import save as to_safetensors

from potluck.coordinator.fleet.commit_cost import commit_seconds
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.samples.loading import first_samples
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.errors import DeviceError, DeviceLost, LinkError, Overdue
from potluck.plan.cost.resident import IN_FLIGHT, to_rehearse, with_resident
from potluck.profile.borrow import borrow, borrow_memory, share_late_parts
from potluck.profile.cells import row_counts
from potluck.profile.line_sharing import Passage, passages, through
from potluck.profile.network import DevicePair, Probing, Trunk, link_profiles, medium, pair_rounds, probe
from potluck.profile.refresh import cell_to_retime, links_changed, refresh
from potluck.profile.store import DeviceKey, Network, NetworkKey, Store
from potluck.program.program import encode
from potluck.types import COORDINATOR, DeviceProfile, Profile, Timing
from potluck.wire.channel import PATIENT_S
from potluck.wire.messages import (
    Abandon,
    Holding,
    Interrupted,
    Measure,
    Measured,
    MeasureProgress,
    Meet,
    Probe,
    Probed,
)

# Of samples to measure with: more says nothing more, and a slow link carries so much in seconds.
_SAMPLE_BYTES = 8 * 2**20
_AGAIN_PART, _AGAIN_LEAST_S = 0.1, 0.3  # of the budget, to see whether a profile from before still holds
_AGAIN_TIMES = 3  # where the first time disagrees: a device that was busy for a moment has not changed
_LINKS_AGAIN_PART = 0.2  # of the budget for links, to see whether they still carry as much: a look, and no measurement
_LINKS_AGAIN_TIMES = 2  # both must disagree: somebody who used the network for a moment has not changed it
_CAUSE_S = PATIENT_S + 1.0  # in which a device that does not answer another is noticed by its own connection


@dataclass(frozen=True)
class MeasuringTime:
    """How long to measure, and what to do with it."""

    seconds: float = 15.0  # each device, on its blocks
    network_seconds: float | None = None  # on all links together; None: half of that
    store: Store | None = None  # where profiles from before are, and new ones are kept
    fresh: bool = False  # take nothing from there
    timeout_s: float = 300.0  # longest wait for a device beyond that
    note: Callable[[str], None] = field(default=lambda text: None)
    progress: Callable[[str, int, int], None] = field(default=lambda device, done, total: None)


def profile_fleet(live: LiveFleet, prepared: PreparedJob, settings: MeasuringTime | None = None) -> Profile:
    """What the model costs every device of the fleet, and what the links carry.

    A device's profile from before is taken if one block, timed again, takes as long as it did; links likewise.
    """
    return _Profiling(live, prepared, settings or MeasuringTime()).run()


def offer_samples(live: LiveFleet, prepared: PreparedJob) -> str:
    """Makes a few rows of every feed available to the devices: inputs must be valid, and random ones are not."""
    count = 2 * prepared.job.micro_batch
    feeds = first_samples(prepared.job, count).feeds
    size = sum(t.nbytes for t in feeds.values()) / max(1, *(len(t) for t in feeds.values()))
    rows = max(1, min(count, int(_SAMPLE_BYTES / max(size, 1))))
    data = to_safetensors({name: tensor[:rows].contiguous() for name, tensor in feeds.items()})
    digest = hashlib.sha256(data).hexdigest()
    live.server.offer(digest, data)
    return digest


def measure_order(prepared: PreparedJob, samples: str, budget_s: float, again: int | None = None) -> Measure:
    """What tells a device to measure the model, or only one block once more."""
    facts = prepared.facts
    return Measure(
        program=facts.digest,
        samples=samples,
        rows=row_counts(prepared.job.micro_batch),
        sizes=tuple(float(b.weight_bytes + b.stash_bytes + 1) for b in facts.blocks),
        optimizer=prepared.optimizer,
        budget_s=budget_s,
        again=again,
        rehearse=() if again is not None else to_rehearse(facts),
    )


def as_measured(prepared: PreparedJob, profile: DeviceProfile, host: str, answer: Measured) -> DeviceProfile:
    """A device's profile, with the memory that its blocks really took."""
    rows = row_counts(prepared.job.micro_batch)[0]
    profile = msgspec.structs.replace(profile, host=host)
    return with_resident(profile, prepared.facts, rows, IN_FLIGHT, answer.rehearsed)


class _Profiling:
    def __init__(self, live: LiveFleet, prepared: PreparedJob, settings: MeasuringTime) -> None:
        self._live, self._prepared, self._settings = live, prepared, settings
        self._store = settings.store
        self._devices = sorted(live.roster.specs)
        self._rows = row_counts(prepared.job.micro_batch)
        self._keys = {device: self._key(device) for device in self._devices}

    def run(self) -> Profile:
        self._live.server.offer(self._prepared.facts.digest, encode(self._prepared.built.programs))
        self._samples = offer_samples(self._live, self._prepared)
        found = self._still_valid()
        missing = [d for d in self._devices if d not in found]
        found |= self._measure(missing)
        network = self._network_of_those_left()
        able = [block.trainable_bytes > 0 for block in self._prepared.facts.blocks]
        return Profile(
            program=self._prepared.facts.digest,
            devices=share_late_parts(borrow(borrow_memory([found[d] for d in self._devices])), able),
            links=network.links,
            medium=network.medium,
            commit_s=network.commit_s,
        )

    def _key(self, device: str) -> DeviceKey:
        hello = self._live.roster.hellos[device]
        return DeviceKey(
            program=self._prepared.facts.digest,
            device=hello.device,
            host=hello.host,
            torch_version=hello.torch_version,
            rows=self._rows,
            optimizer=type(self._prepared.optimizer).__name__,
        )

    def _order(self, budget_s: float, again: int | None = None) -> Measure:
        return measure_order(self._prepared, self._samples, budget_s, again)

    def _still_valid(self) -> dict[str, DeviceProfile]:
        """Profiles from before that still hold: a block is timed again, and more often where that disagrees."""
        store = self._store
        if store is None or self._settings.fresh:
            return {}
        count = len(self._prepared.facts.blocks)
        known = {d: p for d in self._devices if (p := store.device(self._keys[d], count)) is not None}
        blocks = {d: b for d, p in known.items() if (b := cell_to_retime(p, self._rows[0])) is not None}
        samples: dict[str, list[Timing]] = {device: [] for device in blocks}
        doubted = self._timed_again(blocks, samples, known)
        for _ in range(_AGAIN_TIMES - 1):
            self._timed_again({d: blocks[d] for d in doubted if d in self._devices}, samples, known)
        valid = {}
        for device, block in blocks.items():
            if device not in self._devices:
                continue
            why = refresh(known[device], block, samples[device]) if samples[device] else "it did not answer"
            if why is None:
                valid[device] = known[device]
            else:
                self._settings.note(f"{device}: measured anew, as {why}")
                store.drop(self._keys[device])
        return valid

    def _timed_again(
        self, blocks: Mapping[str, int], samples: dict[str, list[Timing]], known: Mapping[str, DeviceProfile]
    ) -> list[str]:
        """Has each device time its block once more; returns those whose times so far disagree with before."""
        budget_s = max(self._settings.seconds * _AGAIN_PART, _AGAIN_LEAST_S)
        for device, block in blocks.items():
            self._live.roster.send(device, self._order(budget_s, again=block))
        for device, answer in self._answers(blocks, budget_s):
            if answer.again is not None:
                samples[device].append(answer.again)
        return [d for d, b in blocks.items() if samples[d] and refresh(known[d], b, samples[d]) is not None]

    def _measure(self, devices: list[str]) -> dict[str, DeviceProfile]:
        """All at once."""
        self._live.roster.broadcast(self._order(self._settings.seconds), devices)
        found = {}
        for device, answer in self._answers(devices, self._settings.seconds):
            if answer.profile is None:
                raise DeviceError(f"device {device}: it sent no profile; join again with the same potluck version")
            found[device] = as_measured(self._prepared, answer.profile, self._keys[device].host, answer)
            if self._store is not None:
                self._store.keep(self._keys[device], found[device])
        return found

    def _answers(self, devices: Iterable[str], budget_s: float) -> list[tuple[str, Measured]]:
        waiting, found = set(devices), []
        deadline = time.monotonic() + 2 * budget_s + self._settings.timeout_s
        while waiting:
            words = f"waiting for {', '.join(sorted(waiting))} to measure; give more with --timeout"
            try:
                device, message = self._live.roster.next(deadline, words)
            except DeviceLost as lost:
                self._without(lost)
                waiting.discard(lost.device)
                continue
            if isinstance(message, MeasureProgress):
                self._settings.progress(device, message.done, message.total)
            elif isinstance(message, Measured) and device in waiting:
                waiting.discard(device)
                found.append((device, message))
        return found

    def _without(self, lost: DeviceLost) -> None:
        """Goes on with those who are left, if there are any."""
        self._devices = [device for device in self._devices if device != lost.device]
        if not self._devices:
            raise lost
        self._settings.note(f"{lost.why}; it is done without")

    def _network_of_those_left(self) -> Network:
        while True:
            try:
                return self._network()
            except DeviceLost as lost:
                self._without(lost)
                self._call_off(lost.why)

    def _call_off(self, why: str) -> None:
        """Whoever measures a link with one that is lost gives that up."""
        roster, waiting = self._live.roster, set(self._devices)
        roster.broadcast(Abandon(run="", term=self._live.next_term(0), reason=why), waiting)
        deadline = time.monotonic() + self._settings.timeout_s
        while waiting:
            try:
                device, answer = roster.next(deadline, f"waiting for {', '.join(sorted(waiting))} to measure anew")
            except DeviceLost as lost:
                self._without(lost)
                waiting.discard(lost.device)
            else:
                waiting -= {device} if isinstance(answer, Holding) else set()

    def _network(self) -> Network:
        hosts = tuple((d, self._keys[d].host) for d in self._devices)
        welcome = self._live.roster.welcome
        key = NetworkKey(devices=hosts, carrier=welcome.carrier, bandwidth_bytes_s=welcome.bandwidth_bytes_s)
        known = None if self._store is None or self._settings.fresh else self._store.network(key)
        if known is not None and self._links_hold(known):
            return known
        found, trunks = self._probe_links(self._network_s())
        links = link_profiles(self._devices, found, trunks)
        network = Network(links=links, medium=medium(found), commit_s=self._commit_s())
        if self._store is not None:
            self._store.keep(key, network)
        return network

    def _commit_s(self) -> float:
        folder = None if self._store is None else self._store.folder
        return commit_seconds(self._live.roster, self._devices, folder, self._settings.timeout_s)

    def _network_s(self) -> float:
        return self._settings.network_seconds or self._settings.seconds / 2

    def _links_hold(self, known: Network) -> bool:
        """Whether links still carry what they did; where a brief look says no, a second one decides."""
        why = None
        for _ in range(_LINKS_AGAIN_TIMES):
            why = links_changed(known.links, *self._probe_links(self._network_s() * _LINKS_AGAIN_PART))
            if why is None:
                return True
        self._settings.note(f"links: measured anew, as {why}")
        return False

    def _probe_links(self, seconds: float) -> tuple[dict[DevicePair, Probing], dict[DevicePair, Trunk]]:
        """What links carry, and which line some of them share; pairs that share no device are measured at once."""
        self._meet()
        rounds = pair_rounds(self._devices)
        budget_s, total = seconds / len(rounds), len(rounds) + 1  # shared lines count as one: how many is not known yet
        found: dict[DevicePair, Probing] = {}
        for number, pairs in enumerate(rounds):
            self._settings.progress("links", number, total)
            found |= self._probe_round(pairs, budget_s)
        self._settings.progress("links", len(rounds), total)
        trunks: dict[DevicePair, Trunk] = {}
        for passage in passages(found):
            trunks |= self._probe_passage(passage, budget_s)
        self._settings.progress("links", total, total)
        return found, trunks

    def _meet(self) -> None:
        """Has everybody open links to everybody, in a term of their own."""
        live = self._live
        term = live.next_term(0)
        peers = {**{d: live.roster.links[d] for d in self._devices}, COORDINATOR: live.link.address}
        for device in self._devices:
            live.roster.send(device, Meet(term=term, peers={n: a for n, a in peers.items() if n != device}))
        live.link.adopt(term, {n: a for n, a in peers.items() if n != COORDINATOR})

    def _probe_passage(self, passage: Passage, budget_s: float) -> dict[DevicePair, Trunk]:
        """One pair by itself, then several: tags of one measurement must not meet those of another."""
        self._meet()
        alone = self._probe_round([passage.pairs[0]], budget_s)
        self._meet()
        return through(passage, alone, self._probe_round(list(passage.pairs), budget_s))

    def _probe_round(self, pairs: list[DevicePair], budget_s: float) -> dict[DevicePair, Probing]:
        live, found = self._live, {}
        mine = next((b for a, b in pairs if a == COORDINATOR), None)  # the coordinator always comes first
        waiting = {device for pair in pairs for device in pair if device != COORDINATOR}
        for a, b in pairs:
            if a != COORDINATOR:
                live.roster.send(a, Probe(peer=b, lead=True, budget_s=budget_s))
            live.roster.send(b, Probe(peer=a, lead=False, budget_s=budget_s))
        broken = ""
        if mine is not None:
            try:
                found[COORDINATOR, mine] = probe(live.link, mine, True, budget_s, self._settings.timeout_s)
            except LinkError as error:
                broken = str(error)
        deadline = time.monotonic() + (_CAUSE_S if broken else budget_s + self._settings.timeout_s)
        while waiting:
            try:
                device, answer = live.roster.next(
                    deadline, f"waiting for {', '.join(sorted(waiting))} to measure a link"
                )
            except Overdue as overdue:
                raise DeviceError(broken or str(overdue)) from overdue
            if isinstance(answer, Interrupted):
                broken = f"device {device}: {answer.text}"
                deadline = min(deadline, time.monotonic() + _CAUSE_S)
            if isinstance(answer, Probed):
                waiting.discard(device)
                found[device, answer.peer] = Probing(answer.bandwidth_bytes_s, answer.latency_s, answer.both_ratio)
        return found
