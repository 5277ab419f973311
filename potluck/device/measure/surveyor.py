"""The agent's side of a profile: measures blocks, messages and links as the coordinator orders."""

from __future__ import annotations

import contextlib
import time

import psutil
import torch
from safetensors.torch import load

from potluck.device.host.cpu_pace import CpuPace
from potluck.device.measure.bench import Rig
from potluck.device.measure.block_times import measure_blocks, retime
from potluck.device.measure.memory_trial import MemoryTrials, TooSlow
from potluck.device.measure.message_cost import message_cost
from potluck.device.measure.reconcile import reconcile
from potluck.errors import DeviceError
from potluck.profile.network import probe
from potluck.program.carve import Carver
from potluck.program.validity import decode
from potluck.types import DeviceProfile, DeviceSpec
from potluck.wire.control_channel import ControlClient
from potluck.wire.link import Link
from potluck.wire.messages import (
    Echo,
    FromAgent,
    FromCoordinator,
    Measure,
    Measured,
    MeasureProgress,
    Meet,
    Probe,
    Probed,
    Rehearsed,
    Welcome,
)
from potluck.wire.trust import Trust

_TELL_EVERY_S = 0.3  # between two lines about how far it is: as smooth as a bar needs
# Of what is left goes to running blocks together: a few samples of whole runs, after many of single blocks.
_TOGETHER_PART = 0.2
_MESSAGES_PART = 0.05  # of the budget goes to what messages cost, which is one figure for all blocks
_REHEARSAL_PART = 0.3  # of the budget, for each rehearsal: what it takes of memory counts as much as time


class Surveyor:
    """Measures for one agent."""

    def __init__(
        self, client: ControlClient[FromCoordinator, FromAgent], spec: DeviceSpec, device: torch.device, trust: Trust
    ) -> None:
        self._client, self._spec, self._device, self._trust = client, spec, device, trust
        self._link: Link | None = None
        self._welcome: Welcome | None = None
        self._idle_bytes = 0
        self._told_s = 0.0

    def welcomed(self, link: Link, welcome: Welcome) -> None:
        """Remembers the link, and what this process takes while it holds nothing."""
        if self._link is None:
            self._idle_bytes = psutil.Process().memory_info().rss
        self._link, self._welcome = link, welcome

    def reconnected(self, client: ControlClient[FromCoordinator, FromAgent]) -> None:
        """The coordinator is reached by another connection from now on."""
        self._client = client

    def obey(self, order: Echo | Measure | Meet | Probe) -> None:
        """Does what was ordered and reports."""
        if self._link is None or self._welcome is None:
            raise DeviceError("an order came before the welcome; join again")
        match order:
            case Echo():
                self._client.send(order)
            case Meet():
                self._link.adopt(order.term, order.peers)
            case Probe():
                found = probe(self._link, order.peer, order.lead, order.budget_s, self._welcome.timeout_s)
                self._client.send(
                    Probed(
                        peer=order.peer, bandwidth_bytes_s=found.bandwidth_bytes_s, latency_s=found.latency_s,
                        both_ratio=found.both_ratio,
                    )
                )  # fmt: skip
            case Measure():
                self._client.send(self._measure(order, self._welcome))

    def _measure(self, order: Measure, welcome: Welcome) -> Measured:
        started = time.monotonic()
        programs = decode(self._client.fetch(order.program, welcome.timeout_s))
        samples = load(self._client.fetch(order.samples, welcome.timeout_s))
        carvers = (Carver(programs.train), Carver(programs.eval))
        pace = CpuPace(self._spec.speed)
        alone = self._device.type == "cpu" and self._spec.threads == 1  # else other threads compute too, or a GPU does
        rig = Rig(
            programs, carvers, order.optimizer, samples, self._device, self._spec.speed, pace if alone else None
        )  # fmt: skip
        if order.again is not None:
            return Measured(again=retime(rig, order.again, order.rows[0], order.budget_s))
        rehearsed = self._rehearse(rig, order)  # first of all: memory once taken would hide what is taken again
        talks_s = order.budget_s * _MESSAGES_PART
        message_s, copy_bytes_s = message_cost(welcome.carrier, self._device, pace, talks_s, self._trust)
        left_s = max(order.budget_s - (time.monotonic() - started), order.budget_s / 2)
        blocks, call_s = measure_blocks(rig, order.rows, left_s * (1 - _TOGETHER_PART), order.sizes, self._tell)
        runs = [r.blocks for r in rehearsed]
        together = reconcile(rig, blocks, call_s, runs, order.rows[0], left_s * _TOGETHER_PART)
        profile = DeviceProfile(
            device=self._spec, blocks=together.blocks, torch_version=str(torch.__version__), message_s=message_s,
            copy_bytes_s=copy_bytes_s, idle_bytes=self._idle_bytes, call_s=together.call_s,
        )  # fmt: skip
        return Measured(profile=profile, rehearsed=rehearsed)

    def _rehearse(self, rig: Rig, order: Measure) -> tuple[Rehearsed, ...]:
        found = []
        rehearsals = MemoryTrials(rig, order.rows[0], order.budget_s * _REHEARSAL_PART)
        with contextlib.suppress(TooSlow):
            for blocks in order.rehearse:
                with contextlib.suppress(RuntimeError, MemoryError):  # too large for this device: nothing is known then
                    grown = rehearsals.grown_bytes(blocks)
                    if grown is not None and rehearsals.extent is not None:
                        found.append(Rehearsed(blocks, grown, rehearsals.extent.steps))
        return tuple(found)

    def _tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told_s > _TELL_EVERY_S or done == total:
            self._told_s = now
            self._client.send(MeasureProgress(done=done, total=total))
