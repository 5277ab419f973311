"""Copies of states in the background: a device's own, what it gives its guardian, what it keeps for its wards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from msgspec.structs import replace

from potluck.compute.runner import StageState
from potluck.device.keeper import Keeper, copied
from potluck.errors import LinkError
from potluck.memory_limit import beyond_limit
from potluck.recover.copies import USUAL_COPIES, copy_rate, unmeasured
from potluck.tensors.state_transfer import receive_state, send_state
from potluck.types import CopyLine, Held
from potluck.wire.link import Link

_AT_ONCE = 4  # of threads: giving, and taking from a few wards
_LONG_ENOUGH_S = 1.0  # of training beside a copy, for the ratio of the two clocks to mean something
_CARRIED_S_PER_BYTE = 1.2e-9  # of CPU time, in the link's own threads


class Copier:
    """Makes copies, and says so when each is whole. What a broken link interrupts is never kept."""

    def __init__(self, keeper: Keeper, stored: Callable[[Held, StageState, float], None], timeout_s: float) -> None:
        """`stored` is given every copy that is whole, and what this one has cost so far, from any thread."""
        self._keeper, self._stored, self._timeout_s = keeper, stored, timeout_s
        self._pool = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="potluck-copies")
        self._cost = _Cost()
        self._use = _Use()

    def training(self, link: Link) -> None:
        """Training begins over this link, or goes on: what it sends from now on is not idle."""
        self._use.begin(link)

    def copy(
        self, link: Link, held: Held, guardian: str | None, wards: Mapping[str, Held], line: CopyLine | None
    ) -> None:
        """Copies the state that is trained, now; each ward is about to send this copy of its own."""
        self._cost.begin()
        self._use.look(link)
        with self._cost.counted():
            state = copied(self._keeper.state(replace(held, live=True)))
        self._stored(held, state, self._cost.seconds)
        with beyond_limit():  # each of the first few has a thread made for it
            if guardian is not None:
                self._pool.submit(self._give, link, guardian, held, state, line, link.term)
            for ward, expected in wards.items():
                self._pool.submit(self._take, link, ward, expected, link.term)

    def _give(self, link: Link, guardian: str, held: Held, state: StageState, line: CopyLine | None, term: int) -> None:
        bytes_s = copy_rate(line or unmeasured(USUAL_COPIES), self._use.bytes_s)
        try:
            with self._cost.counted(state.nbytes):
                send_state(
                    link, guardian, held.round, state, self._timeout_s, held, fixed=True, bytes_s=bytes_s, term=term
                )
            self._use.copied_bytes += state.nbytes
        except LinkError:
            return  # the guardian never says that it has it

    def _take(self, link: Link, ward: str, held: Held, term: int) -> None:
        try:
            with self._cost.counted() as more:
                state = receive_state(link, ward, held.round, self._timeout_s, held, term=term)
                more(state.nbytes)
        except LinkError:
            return
        self._stored(held, state, self._cost.seconds)

    def close(self) -> None:
        """Waits for nothing: threads end with their link."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Use:
    """What training sends: until the first copy, and from one copy to the next."""

    def __init__(self) -> None:
        self.bytes_s: float | None = None  # not known yet
        self.copied_bytes = 0
        self._since: tuple[Link, float, int] | None = None  # when, and all that was sent until then but copies

    def begin(self, link: Link) -> None:
        """Training begins, if it does so over another link than before."""
        if self._since is None or self._since[0] is not link:
            self.bytes_s, self._since = None, (link, time.monotonic(), link.stats.bytes_sent - self.copied_bytes)

    def look(self, link: Link) -> None:
        """A copy begins."""
        now_s, sent = time.monotonic(), link.stats.bytes_sent - self.copied_bytes
        if self._since is not None and self._since[0] is link:
            _, before_s, before = self._since
            self.bytes_s = max(0, sent - before) / max(now_s - before_s, 1e-3)
        self._since = link, now_s, sent


class _Cost:
    """What a copy takes of training: its CPU time, times the seconds of training for each CPU second.

    Waiting counts as training here, so that copies take no larger part of the CPU time than of the time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copying_s = 0.0
        self._stretch = 1.0
        self._since: tuple[float, float] | None = None  # when the copy began, by the clock and in CPU time

    def begin(self) -> None:
        with self._lock:
            self._look()
            self._copying_s, self._since = 0.0, (time.monotonic(), time.process_time())

    @contextmanager
    def counted(self, carried_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Counts what this thread does; who learns only then how much was carried tells what it is given."""
        began_s = time.thread_time()
        carried = [carried_bytes]
        try:
            yield carried.append
        finally:
            spent_s = time.thread_time() - began_s + sum(carried) * _CARRIED_S_PER_BYTE
            with self._lock:
                self._copying_s += spent_s

    @property
    def seconds(self) -> float:
        """Of training, that the copy has taken so far."""
        with self._lock:
            self._look()
            return self._copying_s * self._stretch

    def _look(self) -> None:
        """Training goes on since the copy began: long enough, that tells how long a CPU second of it takes."""
        if self._since is not None:
            passed_s, cpu_s = time.monotonic() - self._since[0], time.process_time() - self._since[1]
            if passed_s > _LONG_ENOUGH_S and cpu_s > 0:
                self._stretch = max(1.0, passed_s / cpu_s)
