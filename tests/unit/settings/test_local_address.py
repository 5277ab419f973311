"""Names to addresses, and this machine's address towards another one."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from potluck.errors import InputError
from potluck.settings.local_address import address_towards, resolve

LOOPBACK = IPv4Address("127.0.0.1")


def test_a_name_and_an_address_are_both_found() -> None:
    assert resolve("localhost", "--host") in (LOOPBACK, IPv4Address("127.0.1.1"))
    assert resolve("192.0.2.7", "--host") == IPv4Address("192.0.2.7")


@pytest.mark.parametrize("host", ["no such host", "x" * 64 + ".example", "::1"])
def test_what_is_no_name_is_refused_with_where_it_was_given(host: str) -> None:
    with pytest.raises(InputError, match=r"^--host: cannot find .*give its IPv4 address"):
        resolve(host, "--host")


def test_towards_loopback_this_machine_is_loopback_whatever_the_port() -> None:
    assert address_towards(LOOPBACK, 0) == address_towards(LOOPBACK, 5000) == LOOPBACK


def test_an_address_that_nothing_can_be_sent_to_is_refused() -> None:
    with pytest.raises(InputError, match=r"255\.255\.255\.255: no way to get there .*check the network"):
        address_towards(IPv4Address("255.255.255.255"), 1)
