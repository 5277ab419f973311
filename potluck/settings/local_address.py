"""Names to addresses, and the address of this machine that another one would see."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

from potluck.errors import InputError


def resolve(host: str, where: str) -> IPv4Address:
    """The IPv4 address of a host name, or the address itself."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{where}: cannot find {host!r} ({why}); check it, or give its IPv4 address") from None
    return IPv4Address(found[0][4][0])


def address_towards(address: IPv4Address, port: int) -> IPv4Address:
    """The address of this machine from which the other one is reached; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting UDP only looks up the route
        try:
            probe.connect((str(address), port or 9))
        except OSError as error:
            raise InputError(f"{address}: no way to get there ({error.strerror}); check the network") from None
        return IPv4Address(probe.getsockname()[0])
