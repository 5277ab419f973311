"""Puts the state of a device's next stage together, from what it holds and what others give."""

from __future__ import annotations

import threading

from potluck.errors import LinkTimeout
from potluck.runtime.keeper import Keeper, joined, subset
from potluck.runtime.stage import StageState
from potluck.runtime.state_transfer import receive_state, send_state
from potluck.wire.link import Link
from potluck.wire.messages import Prepare


def put_together(link: Link, order: Prepare, me: str, keeper: Keeper, timeout_s: float) -> StageState:
    """The state, while others get of it what they need from here."""
    trouble: list[Exception] = []

    def give() -> None:
        try:
            for move in order.moves:
                if move.source == me and move.target != me:
                    state = subset(keeper.state(move.held), move.names)
                    send_state(link, move.target, order.round, state, timeout_s, move.held, fixed=True, term=order.term)
        except Exception as error:  # whatever it is: others wait for what does not come
            trouble.append(error)

    giving = threading.Thread(target=give, name="potluck-giving", daemon=True)
    giving.start()
    try:
        parts = [
            subset(keeper.state(move.held), move.names)
            if move.source == me
            else receive_state(link, move.source, order.round, timeout_s, move.held)
            for move in order.moves
            if move.target == me
        ]
    finally:
        giving.join(timeout_s)
    if trouble:
        raise trouble[0]
    if giving.is_alive():
        raise LinkTimeout(f"others did not take what {me} gives after {timeout_s:.0f} s")
    return joined(parts)
