"""The ports that a user names reach this machine's devices, and whoever joins."""

from __future__ import annotations

import os
from typing import Any

import pytest

from potluck.cli.verbs.join import join
from potluck.commands.here import tell_local_devices
from potluck.device import process
from potluck.settings.address import LinkAddress, Ports
from potluck.settings.verb_settings import JoinSettings, TrainSettings, settle


def test_a_device_that_joins_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[LinkAddress] = []

    def run(address: str, spec: object, bind: LinkAddress, *rest: object, **more: Any) -> int:
        places.append(bind)
        return 0

    monkeypatch.setattr(process, "run_agent", run)
    assert join("127.0.0.1:7117", settle(JoinSettings, {"link_ports": "7200-7219"}, {})) == 0
    assert places == [LinkAddress("127.0.0.1", Ports(7200, 7219))]


@pytest.mark.parametrize("given", ["7200-7219", "7200"])
def test_devices_that_are_started_here_listen_there_too(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    settings = settle(TrainSettings, {"link_ports": given}, {})
    tell_local_devices(settings)
    variables = {name: value for name, value in os.environ.items() if name.startswith("POTLUCK_")}
    assert settle(JoinSettings, {}, variables).link_ports == settings.link_ports
