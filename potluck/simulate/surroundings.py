"""What a simulated device needs of the world around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from potluck.control.cluster_state import Blueprint
from potluck.simulate.numbers_for_tensors import Numbers
from potluck.simulate.world import World
from potluck.wire.messages import FromAgent

if TYPE_CHECKING:
    from potluck.simulate.simulated_device import Device


class Surroundings(Protocol):
    """What a device needs of the others."""

    @property
    def world(self) -> World: ...
    @property
    def devices(self) -> Mapping[str, Device]: ...
    @property
    def expected(self) -> list[Numbers]: ...  # round → what every tensor is after so many rounds
    @property
    def model(self) -> Blueprint: ...

    def to_coordinator(self, device: str, message: FromAgent) -> None: ...
    def state_to_coordinator(self, device: str, round: int, numbers: Numbers) -> None: ...
    def connect(self, device: str) -> bool: ...
    def failpoint(self, who: str, order: object) -> None: ...
