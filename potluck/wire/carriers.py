"""Opens a link by the name of its carrier."""

from __future__ import annotations

from potluck.errors import InputError
from potluck.settings.address import ANY_PORT, LinkAddress
from potluck.wire.link import Link
from potluck.wire.trust import Trust

CARRIERS = ("zmq", "gloo")


def open_link(carrier: str, name: str, bind: LinkAddress, trust: Trust, bandwidth_bytes_s: float | None = None) -> Link:
    """A link of the carrier: ZeroMQ, or torch.distributed's Gloo for trusted clusters."""
    if carrier == "zmq":
        from potluck.wire.zmq_link import ZmqLink

        return ZmqLink(name, bind, bandwidth_bytes_s=bandwidth_bytes_s, trust=trust)
    if carrier == "gloo":
        from potluck.wire.gloo_link import GlooLink

        if bind.ports != ANY_PORT:
            raise InputError("--link-ports: gloo chooses its ports itself; leave it out, or use --carrier zmq")
        return GlooLink(name, bind.host, bandwidth_bytes_s=bandwidth_bytes_s, trust=trust)
    raise InputError(f"--carrier {carrier}: not known; give one of {', '.join(CARRIERS)}")
