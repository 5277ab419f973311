"""Where potluck may listen and connect."""

from ipaddress import IPv4Address, IPv4Network

import pytest

from potluck.errors import InputError
from potluck.settings.address import check_reachable, plain_network, split_address

LAN = IPv4Network("192.168.1.0/24")


def test_an_address_is_split():
    assert split_address("pi.local:7117", port_needed=True) == ("pi.local", 7117)
    assert split_address("127.0.0.1:0", port_needed=False) == ("127.0.0.1", 0)


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1", "[::1]:5", "host:0", "http://host:1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InputError, match="give"):
        split_address(text, port_needed=True)


@pytest.mark.parametrize("text", ["192.168.1.0", "192.168.1.5/24", "fe80::/10", "lan/24", "10.0.0.0/40"])
def test_what_is_no_network_is_refused(text):
    with pytest.raises(InputError, match=r"like 192\.168\.1\.0/24"):
        plain_network(text)


def test_this_machine_needs_no_declaration():
    check_reachable(IPv4Address("127.0.0.1"), None, "x")


def test_off_this_machine_is_refused_with_the_flag_to_add():
    with pytest.raises(InputError, match=r"--listen x: .*nothing is encrypted") as caught:
        check_reachable(IPv4Address("192.168.1.5"), None, "--listen x")
    assert "--plain-network 192.168.1.0/24" in str(caught.value)


def test_the_declared_network_is_allowed_and_another_is_not():
    check_reachable(IPv4Address("192.168.1.5"), LAN, "x")
    with pytest.raises(InputError, match=r"192\.168\.2\.5 is not in --plain-network"):
        check_reachable(IPv4Address("192.168.2.5"), LAN, "x")


def test_every_network_at_once_is_never_allowed():
    with pytest.raises(InputError, match="every network at once"):
        check_reachable(IPv4Address(0), IPv4Network("0.0.0.0/0"), "x")
