"""Devices that are here and wait for work: local agents and joined ones, their control channel and link."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import NamedTuple

from potluck.coordinator.fleet.local_devices import LocalAgents
from potluck.coordinator.fleet.roster import Roster
from potluck.coordinator.options import Options
from potluck.settings.address import LinkAddress
from potluck.types import COORDINATOR, Fleet
from potluck.wire.carriers import open_link
from potluck.wire.control_channel import ControlServer
from potluck.wire.messages import FINISHED, FromAgent, FromCoordinator, Stop, Welcome

_LOCAL_START_S = 120.0  # in which a process here starts, however little --timeout is: a card gives torch slowly


class InterruptedRun(NamedTuple):
    """A run whose coordinator vanished, and who trained it."""

    run: str
    devices: tuple[str, ...]


class LiveFleet:
    """A context: on entering, every device has joined; on leaving, every local process has ended.

    The devices of `fleet` are started on this machine; `options.joined` more come from elsewhere.
    """

    def __init__(self, fleet: Fleet | None, options: Options, back: InterruptedRun | None = None) -> None:
        """With `back`, the devices of a run that was interrupted are awaited first: they may have held on to it."""
        self._local = fleet.devices if fleet is not None else ()
        self._bandwidth = fleet.bandwidth_bytes_s if fleet is not None else None
        self._options, self._back = options, back
        self.held = False  # devices have held on to the run that was interrupted,
        self.holding = False  # and still do: until a plan is in force they must not be told to stop
        self.farewell = FINISHED  # what devices are told at the end, if all went well
        self._term = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> LiveFleet:
        try:
            self._open()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())
            raise
        return self

    def _open(self) -> None:
        options, local = self._options, self._local
        host, _, port = options.listen.rpartition(":")
        self.server: ControlServer[FromAgent, FromCoordinator] = ControlServer(
            host, int(port), FromAgent, trust=options.trust
        )
        self._stack.callback(self.server.close)
        self.link = open_link(
            options.carrier, COORDINATOR, LinkAddress(host, options.link_ports), options.trust, self._bandwidth
        )
        self._stack.callback(self.link.close)
        welcome = Welcome(
            name="", carrier=options.carrier, bandwidth_bytes_s=self._bandwidth, timeout_s=options.timeout_s
        )  # fmt: skip
        self.roster = Roster(self.server, welcome, options.progress, options.silence_s)
        self.agents = self._stack.enter_context(LocalAgents(local, self.server.address, options.data))
        self._stack.callback(lambda: None if self.holding else self.roster.broadcast(Stop(reason=self.farewell)))
        self.roster.proofs = self.agents.proofs
        self.roster.died = self.agents.died
        self.roster.interrupted = options.should_stop
        options.listening(self.server.address)
        back = self._back
        if back is not None and options.joined:
            self.held = self.roster.gather_back(back.devices, back.run, options.return_s, options.progress)
        if not self.held:
            self._gather()
            self.held = back is not None and any(h.holds == back.run for h in self.roster.hellos.values())
        self.holding = self.held
        self.roster.interrupted = lambda: False  # from here on an interrupt drains: rounds look at should_stop

    def _gather(self) -> None:
        options, local = self._options, self._local
        self.roster.gather(
            len(local) + options.joined if options.joined else [d.name for d in local],
            options.join_timeout_s if options.joined else max(_LOCAL_START_S, options.join_timeout_s),
            options.progress,
        )

    @property
    def fleet(self) -> Fleet:
        """The devices that are here now."""
        return Fleet(devices=tuple(self.roster.specs.values()), bandwidth_bytes_s=self._bandwidth)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        self._stack.__exit__(kind, error, trace)

    def next_term(self, after: int) -> int:
        """A number for the next plan to come into force, above every one so far and above `after`."""
        self._term = max(self._term, after) + 1
        return self._term

    def fail(self, error: BaseException) -> None:
        """Tells every device that it is over; those that hold on to a run go on with that."""
        self.link.cancel("the run failed")
        if self.holding:
            return
        self.roster.broadcast(Stop(reason=f"the run failed: {error}"))
