"""What a device holds: the state it trains, and copies of it and of others' that somebody may need after a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import msgspec
import torch

from potluck.errors import DeviceError
from potluck.runtime.stage import StageState
from potluck.types import Held


class Keeper:
    """States by what they are. Copies come and go in the background; the live one belongs to the device's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: dict[Held, StageState] = {}
        self.live: Held | None = None
        self._read: Callable[[], StageState] = lambda: StageState({}, {})

    def train(self, held: Held, read: Callable[[], StageState]) -> None:
        """From now on this is the state that is trained; `read` gives its tensors as they are."""
        self.live, self._read = held, read

    def committed(self, round: int) -> None:
        """The state that is trained is of so many rounds now."""
        if self.live is not None:
            self.live = msgspec.structs.replace(self.live, round=round)

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self.live, self._read = None, lambda: StageState({}, {})
            self._copies.clear()

    def keep(self, held: Held, state: StageState) -> None:
        """Keeps a state that nobody changes any more."""
        with self._lock:
            self._copies[held] = state

    def forget_before(self, round: int) -> None:
        """Lets go of copies that nobody will ask for."""
        with self._lock:
            self._copies = {held: state for held, state in self._copies.items() if held.round >= round}

    def forget_after(self, round: int) -> None:
        """Lets go of copies of rounds that are to be trained again: they may come out with other last bits."""
        with self._lock:
            self._copies = {held: state for held, state in self._copies.items() if held.round <= round}

    def inventory(self) -> tuple[Held, ...]:
        """Everything that is here."""
        with self._lock:
            return (*(() if self.live is None else (self.live,)), *self._copies)

    def state(self, held: Held) -> StageState:
        """A state as it is: not copied."""
        with self._lock:
            state = self._read() if held == self.live else self._copies.get(held)
        if state is None:
            raise DeviceError(f"the state of stage {held.stage} at round {held.round} is not here; join again")
        return state


def subset(state: StageState, names: Iterable[str]) -> StageState:
    """The tensors with these names, and what the optimizer keeps of them."""
    wanted = set(names)
    return StageState(
        {n: t for n, t in state.parameters.items() if n in wanted},
        {n: t for n, t in state.buffers.items() if n in wanted},
        {k: t for k, t in state.optimizer.items() if k.rpartition("/")[0] in wanted},
    )


def joined(parts: Iterable[StageState]) -> StageState:
    """Several parts as one state."""
    whole = StageState({}, {})
    for part in parts:
        whole.parameters.update(part.parameters)
        whole.buffers.update(part.buffers)
        whole.optimizer.update(part.optimizer)
    return whole


def copied(state: StageState) -> StageState:
    """The same numbers in memory of their own, in the same memory order: kernels follow it."""

    def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    return StageState(copies(state.parameters), copies(state.buffers), copies(state.optimizer))
