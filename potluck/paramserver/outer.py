"""The outer step of a server: changes go on for a while in their direction (Nesterov, as in DiLoCo)."""

from __future__ import annotations

# Workers up to which all of the momentum is of use: more of them overtake each other, which acts like momentum.
_FEW = 3


def outer_factors(momentum: float, workers: int) -> tuple[float, float]:
    """What is kept of the velocity from push to push, and how much of it a step takes.

    Momentum is that of a round, in which each worker pushes once. Pushes that others have overtaken act like momentum
    by themselves, the more workers the more; so with more than a few of them less is added to it. All that a change
    moves the weights by, now and later, is 1 / (1 - what is added) times the change.
    """
    added = momentum * min(1.0, (_FEW - 1) / (workers - 1)) if workers > 1 else 0.0
    kept = added ** (1.0 / workers) if added else 0.0
    return kept, (1.0 - kept) / (1.0 - added)
