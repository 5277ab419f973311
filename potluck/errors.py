"""Errors that say what to do. Exit codes: 1 the run failed, 2 the input was wrong, 3 a device failed."""

OUT_OF_MEMORY = "out of memory"  # in the words of a device that could not go on for that


class PotluckError(Exception):
    """A failure with a message fit to be shown as it is, on one line."""

    exit_code = 1


class InputError(PotluckError):
    """The user's input is wrong; the message names the file, key or flag, and the fix."""

    exit_code = 2


class ModelError(InputError):
    """The model cannot be turned into a program; the message names the line and the ways out."""


class PlanError(InputError):
    """A plan that cannot be run; the message names the field."""


class CodecError(PotluckError):
    """A codec did what no codec may: the same on every device, so the run ends."""


class DeviceError(PotluckError):
    """A device failed, vanished or refused."""

    exit_code = 3


class DeviceLost(DeviceError):
    """A device vanished while it was needed."""

    def __init__(self, device: str, why: str, advice: str, *, silent: bool = False) -> None:
        """`silent`: nothing was heard from it, rather than that its connection ended."""
        super().__init__(f"{why}; {advice}")
        self.device, self.why, self.silent = device, why, silent


class Overdue(DeviceError):
    """Nobody answered in time."""


class LinkError(DeviceError):
    """A message could not be sent or did not arrive."""

    def __init__(self, text: str, peer: str | None = None) -> None:
        """`peer`: who did not answer, where that is what went wrong."""
        super().__init__(text)
        self.peer = peer


class LinkTimeout(LinkError):
    """Nothing arrived, or nothing could be sent, before the deadline."""


class PeerLost(LinkError):
    """The other end of a link is gone."""


class Cancelled(LinkError):
    """A blocked call was ended on purpose, by `Link.cancel`."""
