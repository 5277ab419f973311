"""A carrier is chosen by its name."""

from __future__ import annotations

import socket

import pytest

from potluck.errors import InputError
from potluck.settings.address import HERE, LinkAddress, Ports
from potluck.wire.carriers import CARRIERS, open_link
from potluck.wire.gloo_link import GlooLink
from potluck.wire.trust import ON_THIS_MACHINE
from potluck.wire.zmq_link import ZmqLink


@pytest.mark.parametrize(("carrier", "kind"), [("zmq", ZmqLink), ("gloo", GlooLink)])
def test_each_name_opens_its_own_kind_on_the_address_that_is_given(carrier: str, kind: type) -> None:
    assert carrier in CARRIERS
    link = open_link(carrier, "a", HERE, ON_THIS_MACHINE)
    try:
        assert type(link) is kind
        assert "127.0.0.1:" in link.address
        assert link.term < 0
    finally:
        link.close()


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"--carrier pigeon: not known; give one of zmq, gloo"):
        open_link("pigeon", "a", HERE, ON_THIS_MACHINE)


def test_a_link_listens_on_the_first_port_that_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"--link-ports {port}: none of them is free on 127\.0\.0\.1; give more"):
            open_link("zmq", "a", LinkAddress("127.0.0.1", Ports(port, port)), ON_THIS_MACHINE)
        link = open_link("zmq", "a", LinkAddress("127.0.0.1", Ports(port, min(port + 20, 65535))), ON_THIS_MACHINE)
    try:
        assert port < int(link.address.rpartition(":")[2]) <= port + 20
    finally:
        link.close()


def test_gloo_lets_nobody_choose_its_ports() -> None:
    with pytest.raises(InputError, match="--link-ports: gloo chooses its ports itself"):
        open_link("gloo", "a", LinkAddress("127.0.0.1", Ports(7200, 7219)), ON_THIS_MACHINE)
