"""Who is let in is a function of an address and what it comes for."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from potluck.wire.trust import ON_THIS_MACHINE, PlainTrust, Role, Trust

HOME = PlainTrust.on(IPv4Network("192.168.1.0/24"))


@pytest.mark.parametrize("role", ["control", "link"])
def test_this_machine_and_the_declared_network_are_let_in_and_others_are_not(role: Role) -> None:
    assert ON_THIS_MACHINE.refusal("127.0.0.9", role) is None
    assert HOME.refusal("127.0.0.1", role) is None
    assert HOME.refusal("192.168.1.77", role) is None
    assert HOME.refusal("192.168.2.77", role) is not None
    assert ON_THIS_MACHINE.refusal("192.168.1.77", role) is not None


def test_a_refusal_says_in_one_line_who_and_what_to_do() -> None:
    why = HOME.refusal("10.0.0.5", "control")
    assert why is not None
    assert "10.0.0.5 is not in 127.0.0.0/8 and 192.168.1.0/24" in why
    assert "--plain-network" in why
    assert "\n" not in why


@pytest.mark.parametrize("peer", ["", "localhost", "::1", "127.0.0.1 ", "127.0.0.1:80"])
def test_what_is_no_address_is_not_let_in(peer: str) -> None:
    assert ON_THIS_MACHINE.refusal(peer, "control") is not None


def test_plain_is_plain() -> None:
    home: Trust = HOME
    assert home.server_context() is None
    assert home.client_context() is None
    assert not HOME.link_options("b"), "there are no keys for who connects"
