"""A process with one link, driven by JSON lines on stdin: what the conformance tests kill and stop."""

from __future__ import annotations

import json
import sys
from typing import Any

from potluck.wire.link import Link, Tag


def make_link(carrier: str, name: str) -> Link:
    """The link under test, over this carrier."""
    if carrier == "zmq":
        from potluck.wire.zmq_link import ZmqLink

        return ZmqLink(name)
    from potluck.wire.gloo_link import GlooLink

    return GlooLink(name)


def obey(link: Link, order: dict[str, Any]) -> object:
    """Do one order and return its result."""
    match order:
        case {"do": "adopt", "term": term, "peers": peers}:
            link.adopt(term, peers)
        case {"do": "send", "peer": peer, "kind": kind, "size": size}:
            link.send(peer, Tag(kind), [bytes(size)], 20.0)
        case {"do": "receive", "peer": peer, "kind": kind}:
            return [part.nbytes for part in link.receive(peer, Tag(kind), 20.0)]
        case _:
            raise ValueError(f"unknown order {order}")
    return None


def main() -> None:
    """Print the address, then one result for each order."""
    link = make_link(sys.argv[1], sys.argv[2])
    print(json.dumps(link.address), flush=True)
    for line in sys.stdin:
        print(json.dumps(obey(link, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
