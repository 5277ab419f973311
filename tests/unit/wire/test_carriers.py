"""A carrier is chosen by its name."""

from __future__ import annotations

import pytest

from potluck.errors import InputError
from potluck.wire.carriers import CARRIERS, open_link
from potluck.wire.gloo_link import GlooLink
from potluck.wire.trust import ON_THIS_MACHINE
from potluck.wire.zmq_link import ZmqLink


@pytest.mark.parametrize(("carrier", "kind"), [("zmq", ZmqLink), ("gloo", GlooLink)])
def test_each_name_opens_its_own_kind_on_the_address_that_is_given(carrier: str, kind: type) -> None:
    assert carrier in CARRIERS
    link = open_link(carrier, "a", "127.0.0.1", ON_THIS_MACHINE)
    try:
        assert type(link) is kind
        assert "127.0.0.1:" in link.address
        assert link.term < 0
    finally:
        link.close()


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"--carrier pigeon: not known; give one of zmq, gloo"):
        open_link("pigeon", "a", "127.0.0.1", ON_THIS_MACHINE)
