"""An agent with one fault patched into the shipped code: what the equality check must notice.

python -m tests.process.mutant_agent MUTANT HOST:PORT NAME
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from potluck.compute.runner import StageRunner
from potluck.compute.stage_optimizer import StageOptimizer
from potluck.device.process import run_agent
from potluck.settings.address import HERE
from potluck.types import DeviceSpec
from potluck.wire.mailbox import Mailbox

FAULTY_ROUND = 2


def none() -> None:
    """No fault: the control."""


def momentum_dropped() -> None:
    """The optimizer is made anew once, mid-run, as if recovery had forgotten its state."""
    commit = StageRunner.commit

    def faulty(self: StageRunner, round: int, lr_scale: float, clip: float) -> None:
        commit(self, round, lr_scale, clip)
        if _nth(self) == FAULTY_ROUND:
            self.optimizer = StageOptimizer(self.optimizer.spec, self.optimizer.parameters)

    StageRunner.commit = faulty  # type: ignore[method-assign]


def stale_copy() -> None:
    """The weights are once taken from a copy that is one round old."""
    commit = StageRunner.commit

    def faulty(self: StageRunner, round: int, lr_scale: float, clip: float) -> None:
        before = {n: t.detach().clone() for n, t in self.parameters.items()}
        commit(self, round, lr_scale, clip)
        if _nth(self) == FAULTY_ROUND:
            for name, tensor in self.parameters.items():
                tensor.data.copy_(before[name])

    StageRunner.commit = faulty  # type: ignore[method-assign]


def micro_batch_skipped() -> None:
    """One micro-batch of every round does not reach the gradient."""
    _patch_backward(lambda before, after: before)


def micro_batch_twice() -> None:
    """One micro-batch of every round counts twice."""
    _patch_backward(lambda before, after: after + after if before is None else after + (after - before))


def term_check_removed() -> None:
    """Frames of an old term are taken for frames of the new one."""
    adopt = Mailbox.adopt

    def faulty(self: Mailbox, term: int, peers: Any, window_bytes: int | None = None) -> None:
        left = {name: peer.parcels for name, peer in self._peers.items()}
        adopt(self, term, peers, window_bytes)
        for name, parcels in left.items():
            if name in self._peers:
                for tag, queue in parcels.items():
                    self._peers[name].parcels.setdefault(tag, type(queue)()).extendleft(reversed(queue))

    Mailbox.adopt = faulty  # type: ignore[method-assign]


def _patch_backward(change: Callable[[Any, Any], Any]) -> None:
    backward = StageRunner.backward

    def faulty(self: StageRunner, round: int, micro_batch: int, gradients: Any, *_: Any) -> Any:
        before = {n: None if g is None else g.clone() for n, g in self.gradients(round).items()}
        result = backward(self, round, micro_batch, gradients)
        if micro_batch == 1:
            after = self.gradients(round)
            self.set_gradients(round, {n: g if g is None else change(before[n], g) for n, g in after.items()})
        return result

    StageRunner.backward = faulty  # type: ignore[method-assign, assignment]


def _nth(stage: StageRunner) -> int:
    stage.commits = getattr(stage, "commits", 0) + 1  # type: ignore[attr-defined]
    return stage.commits  # type: ignore[attr-defined, no-any-return]


MUTANTS = {
    m.__name__: m
    for m in (none, momentum_dropped, stale_copy, micro_batch_skipped, micro_batch_twice, term_check_removed)
}

if __name__ == "__main__":
    MUTANTS[sys.argv[1]]()
    raise SystemExit(run_agent(sys.argv[2], DeviceSpec(name=sys.argv[3]), HERE))
