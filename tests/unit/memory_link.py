"""A link that lies in memory: what was sent is there at once, and what was not sent is never waited for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from potluck.errors import LinkTimeout
from potluck.wire.link import Buffer, LinkStats, Tag

Post = dict[tuple[str, str, Tag, int], deque[list[bytes]]]


class MemoryLink:
    """One device's end of it. Every end of a fleet shares the `post`."""

    def __init__(self, name: str, post: Post, term: int = 1) -> None:
        self.name, self.post, self.term = name, post, term
        self.stats, self.address = LinkStats(), f"memory:{name}"
        self.sent: list[tuple[str, Tag, int]] = []  # to whom, as what, how many bytes
        self.peers: dict[str, str] = {}

    def adopt(self, term: int, peers: Mapping[str, str], window_bytes: int | None = None) -> None:
        self.term, self.peers = term, dict(peers)

    def meet(self, peer: str, address: str) -> None:
        self.peers[peer] = address

    def forget(self, peer: str) -> None:
        del self.peers[peer]

    def send(self, peer: str, tag: Tag, parts: Sequence[Buffer], timeout_s: float, term: int | None = None) -> None:
        copies = [bytes(part) for part in parts]
        self.sent.append((peer, tag, sum(map(len, copies))))
        self.post[self.name, peer, tag, self.term if term is None else term].append(copies)

    def receive(self, peer: str, tag: Tag, timeout_s: float, term: int | None = None) -> list[memoryview]:
        waiting = self.post[peer, self.name, tag, self.term if term is None else term]
        if not waiting:
            raise LinkTimeout(f"peer {peer}, waiting for {tag}: nothing was sent")
        return [memoryview(bytearray(part)) for part in waiting.popleft()]

    def arrived(self, peer: str, tag: Tag) -> bool:
        return bool(self.post[peer, self.name, tag, self.term])

    def cancel(self, reason: str) -> None:
        raise AssertionError("nothing waits here")

    def close(self) -> None:
        self.post.clear()


def memory_links(names: Iterable[str], term: int = 1) -> list[MemoryLink]:
    """The ends of a fleet's link."""
    post: Post = defaultdict(deque)
    return [MemoryLink(name, post, term) for name in names]
