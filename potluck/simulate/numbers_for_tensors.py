"""Numbers that stand for the tensors of a simulated world.

The number of a tensor after a round follows from the one before and from the round, for weights and for what the
optimizer keeps: a round that is left out, done twice, or done on what another round left, shows. Where gradients are a
step late, it follows from the weights before that, too.
"""

from __future__ import annotations

Number = tuple[int, int, int]  # weights, what the optimizer keeps of them, and weights before the last step
Numbers = dict[str, Number]  # by tensor


def start_number(name: str) -> Number:
    """Before the first round; no two tensors are alike."""
    weights = sum(name.encode())
    return (weights, len(name), weights)


def trained(number: Number, round: int, *, late: bool = False) -> Number:
    """What a round makes of a tensor."""
    weights, optimizer, before = number
    return (hash((weights, optimizer, round, before if late else 0)), hash((optimizer, round)), weights)
