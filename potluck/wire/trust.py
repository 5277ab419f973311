"""Who may speak, and how what is said is kept from others: asked by control servers, control clients and links.

One value a process, given to all of them. Another kind of trust is one more class like `PlainTrust`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Literal, Protocol

from potluck.settings.address import plain_networks

if TYPE_CHECKING:
    from ssl import SSLContext

Role = Literal["control", "link"]  # what somebody comes for
SocketOption = tuple[int, int | bytes]


class Trust(Protocol):
    """Decides, and hands out what encrypts. It opens no socket itself."""

    def refusal(self, peer: str, role: Role) -> str | None:
        """Why nobody from this address is let in, in one line; None: they are admitted. Pure."""

    def server_context(self) -> SSLContext | None:
        """TLS of a control server; None: it speaks in the clear."""

    def client_context(self) -> SSLContext | None:
        """TLS of a control client; None: it speaks in the clear."""

    def link_options(self, peer: str | None) -> Sequence[SocketOption]:
        """What ZeroMQ needs to know before a link connects to a peer, or listens (None): networks, and keys one day."""


@dataclass(frozen=True)
class PlainTrust:
    """Nothing is encrypted and nobody proves anything: who is on one of these networks is let in."""

    networks: tuple[IPv4Network, ...] = plain_networks(None)

    @classmethod
    def on(cls, declared: IPv4Network | None) -> PlainTrust:
        """What the user's `--plain-network` comes to."""
        return cls(plain_networks(declared))

    def refusal(self, peer: str, role: Role) -> str | None:
        try:
            address = IPv4Address(peer)
        except AddressValueError:
            return f"{role}: {peer!r} is no IPv4 address, and others are not supported yet"
        if any(address in network for network in self.networks):
            return None
        known = " and ".join(map(str, self.networks))
        return f"{role}: {peer} is not in {known}; start with --plain-network and a network that it is in"

    def server_context(self) -> None:
        """Nothing is encrypted."""

    def client_context(self) -> None:
        """Nothing is encrypted."""

    def link_options(self, peer: str | None) -> Sequence[SocketOption]:
        """Whoever listens has ZeroMQ drop connections from elsewhere, before a byte is read."""
        if peer is not None:
            return ()
        from zmq import TCP_ACCEPT_FILTER  # only here: who only chooses whom to trust opens no link

        return [(TCP_ACCEPT_FILTER, str(network).encode()) for network in self.networks]


ON_THIS_MACHINE = PlainTrust()
