"""Waits until the devices that begin a run have read their data and made the model ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from potluck.coordinator.fleet.roster import Roster
from potluck.datasets.class_names import ClassNames
from potluck.errors import DeviceLost, Overdue
from potluck.wire.messages import Linked, Load, Loaded

_LOOK_S = 0.2  # between two looks at the clock, while everybody is silent


class FirstDevices:
    """Who can begin, and why others cannot. Devices may go meanwhile, and others come in their place."""

    def __init__(
        self, roster: Roster, order: Callable[[str], Load], timeout_s: float, should_stop: Callable[[], bool]
    ) -> None:
        """`order` is what a device is told to load, by its name."""
        self._roster, self._order, self._timeout_s, self._should_stop = roster, order, timeout_s, should_stop
        self._awaited: dict[str, float] = {}  # until when
        self.found: dict[str, Loaded] = {}
        self.refused: dict[str, str] = {}  # and why

    def load(self, devices: Iterable[str], names: ClassNames) -> None:
        """Tells them to load, and waits for all; who calls labels by other names than the first is refused too."""
        for device in devices:
            self._tell(device)
        while self._awaited:
            if self._should_stop():
                raise KeyboardInterrupt
            try:
                self._hear_one()
            except DeviceLost as lost:
                self._refuse(lost.device, lost.why)
        for device, one in tuple(self.found.items()):
            if problem := names.problem(device, one.classes):
                self._refuse(device, problem)

    def _tell(self, device: str) -> None:
        self.refused.pop(device, None)  # it may be back
        self._awaited[device] = time.monotonic() + self._timeout_s
        self._roster.send(device, self._order(device))

    def _hear_one(self) -> None:
        """A message, or nothing for a while; DeviceLost if somebody is gone, or took too long."""
        late, deadline = min(self._awaited.items(), key=lambda one: one[1])
        try:
            device, message = self._roster.next(min(deadline, time.monotonic() + _LOOK_S), "")
        except Overdue:
            if time.monotonic() < deadline:
                return
            raise self._roster.drop(late, f"did not make the model ready in {self._timeout_s:.0f} s") from None
        match message:
            case Linked():
                self._tell(device)
            case Loaded() if message.problem:
                self._refuse(device, message.problem)
            case Loaded():
                self._awaited.pop(device, None)
                self.found[device] = message

    def _refuse(self, device: str, why: str) -> None:
        self._awaited.pop(device, None)
        self.found.pop(device, None)
        self.refused[device] = why
