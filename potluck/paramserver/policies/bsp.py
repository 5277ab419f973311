"""Bulk-synchronous: all push after every step and wait for the last."""

from __future__ import annotations

from potluck.paramserver.policies.local import Lockstep
from potluck.paramserver.policy_values import plain


class Bsp(Lockstep):
    """Bulk-synchronous: all push after every step and wait for the last."""

    def __init__(self) -> None:
        super().__init__(steps=1)


FACTORY = plain(Bsp)
