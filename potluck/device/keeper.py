"""What a device holds: the state it trains, and copies of it and of others' that somebody may need after a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch

from potluck.compute.runner import StageState
from potluck.errors import DeviceError
from potluck.types import Held


class Keeper:
    """States by what they are. Copies come and go in the background; the live one belongs to the device's thread."""

    def __init__(self, live: Callable[[], Held | None]) -> None:
        """`live` says what the state that is trained is, by now."""
        self._lock = threading.Lock()
        self._copies: dict[Held, StageState] = {}
        self._live = live
        self._read: Callable[[], StageState] = lambda: StageState({}, {})

    def train(self, read: Callable[[], StageState] | None) -> None:
        """From now on this is the state that is trained; `read` gives its tensors as they are. None: there is none."""
        self._read = read if read is not None else lambda: StageState({}, {})

    def keep(self, held: Held, state: StageState) -> None:
        """Keeps a state that nobody changes any more."""
        with self._lock:
            self._copies[held] = state

    def retain(self, copies: Iterable[Held]) -> None:
        """Lets go of every other copy."""
        wanted = set(copies)
        with self._lock:
            self._copies = {held: state for held, state in self._copies.items() if held in wanted}

    def state(self, held: Held) -> StageState:
        """A state as it is: not copied."""
        with self._lock:
            state = self._read() if held == self._live() else self._copies.get(held)
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
