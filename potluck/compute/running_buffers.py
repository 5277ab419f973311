"""Buffers that training forwards change: batch statistics per micro-batch, folded in micro-batch order at commit.

Statistics of the same kind are kept end to end in one tensor. Folding is element by element, so this changes no bit,
and a network of fifty BatchNorm layers costs a handful of operators a micro-batch instead of hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from potluck.compute.execution.execution import Registers
from potluck.program.program import Program, Update


class Statistic(NamedTuple):
    """What one micro-batch adds, end to end, and from how many rows."""

    flat: torch.Tensor
    rows: int


Statistics = dict[tuple[int, int], Statistic]  # (micro-batch, kind) → statistic


class _Kind(NamedTuple):
    use: int  # a BatchNorm called twice in one forward changes its buffers twice, in order
    kind: str
    amount: float
    dtype: torch.dtype


class RunningBuffers:
    """The buffers of one stage, as of the last commit, and what the open rounds will do to them."""

    def __init__(self, program: Program, updates: Sequence[int], buffers: dict[str, torch.Tensor]) -> None:
        self.values = buffers
        self.statistics: dict[int, Statistics] = {}  # round → what its forwards did
        self._replaced: dict[int, dict[str, torch.Tensor]] = {}
        self._folded: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}  # kind → its buffers end to end
        self._free = [program.updates[i] for i in updates if program.updates[i].kind == "value"]
        kinds: dict[_Kind, list[Update]] = {}
        uses: dict[str, int] = {}
        for update in (program.updates[i] for i in updates):
            if update.kind != "value" and update.buffer in buffers:
                use = uses[update.buffer] = uses.get(update.buffer, -1) + 1
                key = _Kind(use, update.kind, update.amount, buffers[update.buffer].dtype)
                kinds.setdefault(key, []).append(update)
        self._kinds = sorted(kinds.items(), key=lambda item: item[0].use)
        self._chains = _chains([{u.buffer for u in updates} for _, updates in self._kinds])

    def read(self, name: str, round: int | None = None) -> torch.Tensor:
        """The buffer a forward of a round sees: replaced ones as the micro-batch before left them."""
        if round is not None:
            for known in sorted(self._replaced, reverse=True):
                if known <= round and name in self._replaced[known]:
                    return self._replaced[known][name]
        return self.values[name]

    def note(self, round: int, micro_batch: int, rows: int, registers: Registers) -> None:
        """Keeps what a forward did, until the verdict."""
        statistics = self.statistics.setdefault(round, {})
        if self._free:
            replaced = self._replaced.setdefault(round, {})
        for update in self._free:
            replaced[update.buffer] = registers[update.value].detach()
        for index, (key, updates) in enumerate(self._kinds):
            if key.kind == "count":
                flat = torch.empty(0)
            else:
                flat = torch.cat([registers[u.value].detach().reshape(-1) for u in updates])
            statistics[micro_batch, index] = Statistic(flat, rows)

    def lonely(self, round: int) -> list[torch.Tensor]:
        """Statistics of micro-batches of a single row, whose variance may be undefined."""
        return [s.flat for s in self.statistics.get(round, {}).values() if s.rows == 1]

    def commit(self, round: int) -> None:
        """The buffers of a round become the buffers."""
        statistics = self.statistics.get(round, {})
        self.values.update(self._replaced.get(round, {}))
        for chain in self._chains:
            micro_batches = sorted({m for m, index in statistics if index in chain})
            # Alone, a kind is folded over all micro-batches at once: one cat and one split instead of one for each.
            runs = [micro_batches] if len(chain) == 1 else [[m] for m in micro_batches]
            for run in runs:
                for index in chain:
                    self._fold_all(index, [statistics[m, index].flat for m in run])
        self.abort(round)

    def _fold_all(self, index: int, statistics: Sequence[torch.Tensor]) -> None:
        """Folds statistics of one kind into its buffers, in the order given."""
        if not statistics:
            return
        key, updates = self._kinds[index]
        values = [self.values[u.buffer] for u in updates]
        whole, views = self._folded.get(index, (None, []))
        if whole is None or any(value is not view for value, view in zip(values, views, strict=True)):
            whole = torch.cat([value.reshape(-1) for value in values])
        running = whole
        for statistic in statistics:
            more = running.new_tensor(key.amount)
            running = running + more if key.kind == "count" else _fold(running, statistic, key)
        parts = running.split([value.numel() for value in values])
        views = [part.view(value.shape) for part, value in zip(parts, values, strict=True)]
        self.values.update(zip((u.buffer for u in updates), views, strict=True))
        self._folded[index] = (running, views)

    def abort(self, *rounds: int) -> None:
        """Forgets open rounds."""
        for round in rounds:
            self.statistics.pop(round, None)
            self._replaced.pop(round, None)


def _fold(running: torch.Tensor, statistic: torch.Tensor, key: _Kind) -> torch.Tensor:
    """momentum · statistic + (1 − momentum) · running, with the rounding of torch's own kernel."""
    rest = float(running.new_ones(()) - running.new_tensor(key.amount))
    if key.kind == "variance" and key.dtype == torch.float32:
        return running.mul(rest).add(statistic, alpha=key.amount)
    return statistic * key.amount + running * rest


def _chains(buffers: Sequence[set[str]]) -> list[list[int]]:
    """Kinds that change the same buffers, and so must take turns from micro-batch to micro-batch."""
    chains: list[tuple[set[str], list[int]]] = []
    for index, names in enumerate(buffers):
        met = [chain for chain in chains if chain[0] & names]
        chains = [chain for chain in chains if chain not in met]
        chains.append((names.union(*(c[0] for c in met)), sorted([index, *(i for c in met for i in c[1])])))
    return [indices for _, indices in chains]
