"""Copies of states in the background: a device's own, what it gives its guardian, what it keeps for its wards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from potluck.errors import LinkError
from potluck.runtime.keeper import Keeper, copied
from potluck.runtime.stage import StageState
from potluck.runtime.state_transfer import receive_state, send_state
from potluck.types import Held
from potluck.wire.link import Link

_AT_ONCE = 4  # of threads: giving, and taking from a few wards


class Copier:
    """Makes copies, and says so when each is whole. What a broken link interrupts is never kept."""

    def __init__(self, keeper: Keeper, stored: Callable[[Held, StageState], None], timeout_s: float) -> None:
        """`stored` is given every copy that is whole, from any thread."""
        self._keeper, self._stored, self._timeout_s = keeper, stored, timeout_s
        self._pool = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="potluck-copies")

    def copy(
        self, link: Link, held: Held, guardian: str | None, wards: Mapping[str, Held], bytes_s: float | None
    ) -> None:
        """Copies the state that is trained, now; each ward is about to send this copy of its own."""
        state = copied(self._keeper.state(replace(held, live=True)))
        self._stored(held, state)
        if guardian is not None:
            self._pool.submit(self._give, link, guardian, held, state, bytes_s, link.term)
        for ward, expected in wards.items():
            self._pool.submit(self._take, link, ward, expected, link.term)

    def _give(self, link: Link, guardian: str, held: Held, state: StageState, bytes_s: float | None, term: int) -> None:
        try:
            send_state(link, guardian, held.round, state, self._timeout_s, held, fixed=True, bytes_s=bytes_s, term=term)
        except LinkError:
            return  # the guardian never says that it has it

    def _take(self, link: Link, ward: str, held: Held, term: int) -> None:
        try:
            state = receive_state(link, ward, held.round, self._timeout_s, held, term=term)
        except LinkError:
            return
        self._stored(held, state)

    def close(self) -> None:
        """Waits for nothing: threads end with their link."""
        self._pool.shutdown(wait=False, cancel_futures=True)
