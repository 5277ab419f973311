"""What can be wrong with a testbed, in one line each."""

from __future__ import annotations

from potluck.errors import PotluckError


class TestbedError(PotluckError):
    """The testbed cannot do what was asked; the message says why and what to do."""

    __test__ = False  # its name is no invitation to pytest


class TestbedMissing(TestbedError):
    """This machine lacks what a testbed needs; the message names it and the way to get it."""
