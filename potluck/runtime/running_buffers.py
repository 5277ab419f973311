"""Buffers that training forwards change: batch statistics per micro-batch, folded in micro-batch order at commit.

Statistics of the same kind are kept end to end in one tensor. Folding is element by element, so this changes no bit,
and a network of fifty BatchNorm layers costs a handful of operators a micro-batch instead of hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from potluck.model.interpret import Registers
from potluck.model.program import Program, Update


class Statistic(NamedTuple):
    """What one micro-batch adds, end to end, and from how many rows."""

    flat: torch.Tensor
    rows: int


class _Kind(NamedTuple):
    use: int  # a BatchNorm called twice in one forward changes its buffers twice, in order
    kind: str
    amount: float
    dtype: torch.dtype


class RunningBuffers:
    """The buffers of one stage, as of the last commit, and what the open round will do to them."""

    def __init__(self, program: Program, updates: Sequence[int], buffers: dict[str, torch.Tensor]) -> None:
        self.values = buffers
        self.statistics: dict[tuple[int, int], Statistic] = {}  # (micro-batch, kind) → statistic
        self._replaced: dict[str, torch.Tensor] = {}
        self._free = [program.updates[i] for i in updates if program.updates[i].kind == "value"]
        kinds: dict[_Kind, list[Update]] = {}
        uses: dict[str, int] = {}
        for update in (program.updates[i] for i in updates):
            if update.kind != "value" and update.buffer in buffers:
                use = uses[update.buffer] = uses.get(update.buffer, -1) + 1
                key = _Kind(use, update.kind, update.amount, buffers[update.buffer].dtype)
                kinds.setdefault(key, []).append(update)
        self._kinds = dict(sorted(kinds.items(), key=lambda item: item[0].use))

    @property
    def shared(self) -> bool:
        """Whether members of a group have statistics to tell each other."""
        return bool(self._kinds)

    def read(self, name: str) -> torch.Tensor:
        """The buffer a forward sees: replaced ones as the micro-batch before left them."""
        return self._replaced.get(name, self.values[name])

    def note(self, micro_batch: int, rows: int, registers: Registers) -> None:
        """Keeps what a forward did, until the verdict."""
        for update in self._free:
            self._replaced[update.buffer] = registers[update.value].detach()
        for index, (key, updates) in enumerate(self._kinds.items()):
            if key.kind == "count":
                flat = torch.empty(0)
            else:
                flat = torch.cat([registers[u.value].detach().reshape(-1) for u in updates])
            self.statistics[micro_batch, index] = Statistic(flat, rows)

    def lonely(self) -> list[torch.Tensor]:
        """Statistics of micro-batches of a single row, whose variance may be undefined."""
        return [s.flat for s in self.statistics.values() if s.rows == 1]

    def commit(self) -> None:
        """The buffers of the round become the buffers."""
        self.values.update(self._replaced)
        kinds = list(self._kinds.items())
        for micro_batch, index in sorted(self.statistics):
            key, updates = kinds[index]
            if key.kind == "count":
                for update in updates:
                    value = self.values[update.buffer]
                    self.values[update.buffer] = value + value.new_tensor(key.amount)
            else:
                self._fold_all(key, updates, self.statistics[micro_batch, index].flat)
        for update in (u for _, updates in kinds for u in updates):
            self.values[update.buffer] = self.values[update.buffer].clone()
        self.abort()

    def _fold_all(self, key: _Kind, updates: Sequence[Update], statistic: torch.Tensor) -> None:
        shapes = [self.values[u.buffer].shape for u in updates]
        running = torch.cat([self.values[u.buffer].reshape(-1) for u in updates])
        parts = _fold(running, statistic, key).split([s.numel() for s in shapes])
        for update, part, shape in zip(updates, parts, shapes, strict=True):
            self.values[update.buffer] = part.view(shape)

    def abort(self) -> None:
        """Forgets the open round."""
        self.statistics.clear()
        self._replaced.clear()


def _fold(running: torch.Tensor, statistic: torch.Tensor, key: _Kind) -> torch.Tensor:
    """momentum · statistic + (1 − momentum) · running, with the rounding of torch's own kernel."""
    rest = float(running.new_ones(()) - running.new_tensor(key.amount))
    if key.kind == "variance" and key.dtype == torch.float32:
        return running.mul(rest).add(statistic, alpha=key.amount)
    return statistic * key.amount + running * rest
