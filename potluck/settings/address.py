"""Where potluck may listen and connect: on this machine freely, elsewhere only on a network declared plain.

Nothing on the wire is encrypted or authenticated yet, so whoever can reach the port could join or listen in.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import NamedTuple

from potluck.errors import InputError

MAX_PORT = 65535  # the largest that TCP has
LOOPBACK = IPv4Network("127.0.0.0/8")


class Ports(NamedTuple):
    """Ports to choose from, both ends included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


ANY_PORT = Ports(0, 0)  # that is free


@dataclass(frozen=True)
class LinkAddress:
    """Where a link listens: at an address of this machine, and on the first of these ports that is free."""

    host: str
    ports: Ports = ANY_PORT


HERE = LinkAddress("127.0.0.1")


def port_range(text: str) -> Ports:
    """The ports of "7200-7219", or of "7200" alone."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise InputError(f"{text!r} names no ports; give the first and the last, like 7200-7219")
    ports = Ports(int(first), int(last or first))
    if not 1 <= ports.first <= ports.last <= MAX_PORT:
        raise InputError(f"{text!r} holds no ports; give the first and the last, from 1 to {MAX_PORT}, like 7200-7219")
    return ports


def split_address(text: str, *, port_needed: bool) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; port 0 stands for any free one, where that makes sense."""
    if "://" in text:
        raise InputError(f"{text!r} is a URL; give HOST:PORT alone, like 192.168.1.5:7117")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise InputError(f"{text!r} is no address; give HOST:PORT, like 192.168.1.5:7117")
    if ":" in host:
        raise InputError(f"{text!r} is an IPv6 address, not supported yet; give an IPv4 address or a host name")
    number = int(port)
    if number > MAX_PORT or (port_needed and number == 0):
        raise InputError(f"{text!r}: there is no port {port}; give one from {int(port_needed)} to {MAX_PORT}")
    return host, number


def plain_network(text: str) -> IPv4Network:
    """The network of a CIDR like 192.168.1.0/24."""
    if "/" not in text:
        raise InputError(f"{text!r} names no network; give it as CIDR, like 192.168.1.0/24")
    try:
        return IPv4Network(text)
    except (AddressValueError, NetmaskValueError, ValueError) as error:
        raise InputError(f"{text!r} is no IPv4 network ({error}); give it as CIDR, like 192.168.1.0/24") from None


def plain_networks(declared: IPv4Network | None) -> tuple[IPv4Network, ...]:
    """Where things may be said in the clear: on this machine, and where its user says so."""
    return (LOOPBACK,) if declared is None else (LOOPBACK, declared)


def check_reachable(address: IPv4Address, network: IPv4Network | None, where: str) -> None:
    """Raises unless the address lies in one of the plain networks."""
    if address.is_unspecified:
        raise InputError(f"{where}: {address} is every network at once; give this machine's address on one of them")
    if any(address in plain for plain in plain_networks(network)):
        return
    if network is None:
        around = IPv4Network(f"{address}/24", strict=False)
        raise InputError(
            f"{where}: {address} is off this machine and nothing is encrypted yet; on a network that you trust, "
            f"add --plain-network {around} here and on every device"
        )
    raise InputError(f"{where}: {address} is not in --plain-network {network}; give the network it is in")
