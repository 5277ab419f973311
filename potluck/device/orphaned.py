"""A device whose coordinator is gone looks for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from potluck.device.entering import CoordinatorClient, let_in
from potluck.errors import PotluckError
from potluck.wire.control_channel import ControlClient
from potluck.wire.messages import FromCoordinator, Hello
from potluck.wire.trust import Trust

_KNOCK_S = 2.0  # for one try: longer than connecting takes, short enough for many tries
_ANSWER_S = 10.0  # for it to let this device in: it may be busy with others
_PAUSE_S = 0.5  # between two tries: nobody notices it, and no coordinator is flooded


def found_again(
    address: str, hello: Hello, hold_s: float, closed: Callable[[], bool], trust: Trust
) -> CoordinatorClient | None:
    """A connection to the coordinator that lets this device in again; None if it is not back in time.

    The `Welcome` is left for whoever reads the connection.
    """
    deadline = time.monotonic() + hold_s
    while time.monotonic() < deadline and not closed():
        with contextlib.suppress(PotluckError):  # nobody is there, or somebody else
            client: CoordinatorClient = ControlClient(address, FromCoordinator, timeout_s=_KNOCK_S, trust=trust)
            try:
                let_in(client, hello, _ANSWER_S)
                return client
            except PotluckError:
                client.close()
        time.sleep(_PAUSE_S)  # it may still believe in the old connection
    return None
