"""Who is here: turns control-channel events into messages by device name, and any loss into one error."""

from __future__ import annotations

import contextlib
import hmac
import queue
import sys
import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from potluck import __version__
from potluck.control.naming import Caller, Known, name_for
from potluck.control.suspicion import PATIENCE_S, Suspicion
from potluck.coordinator.fleet.awaiting import Awaiting
from potluck.errors import CodecError, DeviceLost, InputError, Overdue, PotluckError
from potluck.types import DeviceSpec
from potluck.wire.channel import PATIENT_S, Connected, Disconnected, FixedWatch
from potluck.wire.control_channel import ControlServer
from potluck.wire.messages import (
    HANDED_OVER,
    PROTOCOL,
    Failed,
    FromAgent,
    FromCoordinator,
    Hello,
    Leaving,
    Linked,
    Stop,
    Welcome,
)

_POLL_S = 0.2  # between two looks for Ctrl-C and for processes that have ended
_TOLD_S = 1.0  # how often whoever waits for devices is told how it stands, if that has changed


class Roster:
    """The devices of a run, as the coordinator sees them."""

    def __init__(
        self, server: ControlServer[FromAgent, FromCoordinator], welcome: Welcome, say: Callable[[str], None],
        silence_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        """`welcome` is what devices are let in with, but for their names; those that train are missed after
        `silence_s` on a calm network."""
        self._server, self.welcome, self._say, self._silence_s = server, welcome, say, silence_s
        self._numbers: dict[str, int] = {}
        self._machines: dict[str, str] = {}  # of everybody who was let in, by name
        self._names: dict[int, str] = {}
        self.specs: dict[str, DeviceSpec] = {}
        self.hellos: dict[str, Hello] = {}
        self.links: dict[str, str] = {}
        self._watched: set[str] = set()  # who is missed soon
        self._room = 0  # how many may be here
        self._expected: set[str] | None = None  # only these, where their names are known
        self.proofs: dict[str, str] = {}  # what the devices started here, by name, must say to be let in
        self._gathering: Callable[[str], None] | None = None  # whom to tell, while devices may still come and go
        self.interrupted: Callable[[], bool] = lambda: False
        self.died: Callable[[], dict[str, str]] = dict  # devices started here that have ended, and how
        self._buried: set[str] = set()  # of these, whose loss was told
        self.closed = True  # nobody but those awaited may join
        self.what_now = "start again without it, or once it is back"  # said with every loss

    def gather(self, wanted: Iterable[str] | int, timeout_s: float, progress: Callable[[str], None]) -> None:
        """Waits until the named devices, or so many of any name, have joined and opened their links.

        One that leaves again meanwhile is forgotten, and its place is free.
        """
        names = None if isinstance(wanted, int) else set(wanted)
        count = wanted if isinstance(wanted, int) else len(names or ())
        self._room, self._expected, self._gathering = count, names, progress
        awaited = Awaiting(progress, timeout_s)
        while missing := max(0, count - len(self.links)) if names is None else sorted(names - set(self.links)):
            awaited.look(tuple(self.links), missing)
            whom = f"{missing} more" if isinstance(missing, int) else ", ".join(missing)
            self._listen(awaited.deadline, f"waiting for {whom} to join; start them, or check the network")
        awaited.look(tuple(self.links), 0)
        self._gathering = None

    def gather_back(self, names: Iterable[str], run: str, timeout_s: float, progress: Callable[[str], None]) -> bool:
        """Waits until the devices of a run that was interrupted are back, or the time is up; whether one holds it."""
        wanted = set(names)
        self._room, self._expected, self._gathering = sys.maxsize, None, progress
        awaited = Awaiting(progress, timeout_s)
        with contextlib.suppress(Overdue):
            while missing := sorted(wanted - set(self.links)):
                awaited.look(tuple(self.links), missing)
                self._listen(awaited.deadline, f"waiting for {', '.join(missing)} to come back")
            awaited.look(tuple(self.links), 0)
        self._gathering, self._room = None, len(self._numbers)
        return any(hello.holds == run for hello in self.hellos.values())

    def _listen(self, deadline: float, waiting_for: str) -> None:
        """Takes in what one device says, or that nobody says anything for a while."""
        try:
            self.next(min(deadline, time.monotonic() + _TOLD_S), waiting_for)
        except Overdue:
            if time.monotonic() > deadline:
                raise

    def send(self, device: str, message: FromCoordinator) -> None:
        self._server.send(self._numbers[device], message)

    def broadcast(self, message: FromCoordinator, devices: Iterable[str] | None = None) -> None:
        """Tells the given devices, or everybody who is here."""
        for device in self._numbers if devices is None else devices:
            self.send(device, message)

    def drop(self, device: str, why: str) -> DeviceLost:
        """Does without a device that is connected and does not answer."""
        return self._gone(device, f"device {device} {why}")

    def watch(self, devices: Iterable[str]) -> None:
        """From now on these are missed soon: they train, and nothing there holds the interpreter for long."""
        for device in devices:
            if device not in self._watched:
                self._watched.add(device)
                self._server.watch(self._numbers[device], Suspicion(patience_s=self._silence_s))

    def release(self, device: str) -> None:
        """Lets a device go that has nothing to do any more."""
        self.send(device, Stop(reason=HANDED_OVER))
        self._strike(device)
        self._buried.add(device)

    def next(self, deadline: float, waiting_for: str) -> tuple[str, FromAgent]:
        """The next message of a device; a DeviceError if one fails, vanishes, or nothing comes in time."""
        while True:
            if self.interrupted():
                raise KeyboardInterrupt
            dead = self._dead()
            if dead is not None and self._server.events.empty():
                raise self._gone(*dead)
            left_s = deadline - time.monotonic()
            if left_s < 0:
                raise Overdue(f"time is up while {waiting_for}")
            try:
                event = self._server.events.get(timeout=min(_POLL_S, left_s))
            except queue.Empty:
                continue
            if isinstance(event, Connected):
                continue
            if isinstance(event, Disconnected):
                self._lost(event)
                continue
            message = event.message
            if isinstance(message, Hello):
                self._admit(event.peer_id, message)
                continue
            name = self._names.get(event.peer_id)
            if name is None:
                continue
            if isinstance(message, Failed):
                if not self._forget(event.peer_id, message.text):
                    raise self._failure(name, message)
                continue
            if isinstance(message, Linked):
                self.links[name] = message.address
            if isinstance(message, Leaving) and self.closed:  # nothing is trained that it could hand over
                self._server.send(event.peer_id, Stop(reason=HANDED_OVER))
                if not self._forget(event.peer_id, "it was asked to"):
                    raise self._gone(name, f"device {name} leaves")
                continue
            return name, message

    def _dead(self) -> tuple[str, str] | None:
        """A process started here that has ended, and how; each is told once."""
        found = self.died()
        return next(((name, how) for name, how in found.items() if name not in self._buried), None)

    def _admit(self, number: int, hello: Hello) -> None:
        caller = Caller(hello.device.name, hello.insists, hello.machine)
        name, why = name_for(caller, self._names_for(hello))
        refusal = self._refusal(number, hello, name) or (why if name is None else "")
        if name is None or refusal:
            self._server.send(number, Stop(reason=refusal))
            self._server.disconnect(number, refusal)
            return
        if why:
            self._say(f"{why}, and another device of that name joins: it is called {name}")
        self._server.accept(number)
        self._server.watch(number, FixedWatch(PATIENT_S))
        self._watched.discard(name)
        self._numbers[name], self._names[number], self._machines[name] = number, name, hello.machine
        self.specs[name] = replace(hello.device, name=name)
        self.hellos[name] = replace(hello, device=self.specs[name])
        self.send(name, replace(self.welcome, name=name))

    def _refusal(self, number: int, hello: Hello, name: str | None) -> str:
        """Why a device cannot be let in, whatever its name, or by this one; "" if it can."""
        if hello.protocol != PROTOCOL:
            return f"it speaks protocol {hello.protocol} (potluck {hello.version}), this is {PROTOCOL} ({__version__})"
        if number in self._names:
            return f"this connection is {self._names[number]} already; join once for each device"
        stranger = self._expected is not None and name not in self._expected
        if name is not None and self.closed and (stranger or not self._has_room(name)):
            return "the run has all its devices; join the next one"
        return ""

    def _names_for(self, hello: Hello) -> dict[str, Known]:
        """Every name there was; those of devices started here are taken for whoever cannot prove to be one."""
        known = {name: Known(machine, name in self._numbers) for name, machine in self._machines.items()}
        said = hello.proof.encode()
        ours = (name for name, proof in self.proofs.items() if not hmac.compare_digest(proof.encode(), said))
        return known | dict.fromkeys(ours, Known("", here=True))

    def _has_room(self, name: str) -> bool:
        """Whether there is a place left; those of the devices started here are kept for them."""
        kept = set() if name in self.proofs else set(self.proofs) - set(self._numbers) - self._buried
        return len(self._numbers) + len(kept) < self._room

    def _forget(self, number: int, why: str) -> bool:
        """Frees the place of a device that goes before training starts; False if the run cannot do without it."""
        name = self._names.get(number)
        if self._gathering is None or name is None or name in self.proofs:
            return False
        self._strike(name)
        del self._machines[name]
        self._gathering(f"{name} left again ({why}); waiting for another device")
        return True

    def _lost(self, event: Disconnected) -> None:
        if self._forget(event.peer_id, event.why):
            return
        name = self._names.get(event.peer_id)
        if name is not None:
            # How its process ended says more, where it is known; it is about to be.
            dead = self.died().get(name) if name in self.proofs else None
            raise self._gone(name, dead or f"device {name} is gone ({event.why})", silent=event.silent and not dead)

    def _failure(self, name: str, message: Failed) -> PotluckError:
        if message.exit_code == InputError.exit_code and self.closed:  # while others train, it is only a device less
            return InputError(f"device {name}: {message.text}")
        if message.exit_code == CodecError.exit_code:  # whoever is in its place fails too
            return CodecError(f"device {name}: {message.text}")
        return self._gone(name, f"device {name}: {message.text}")

    def _gone(self, name: str, how: str, *, silent: bool = False) -> DeviceLost:
        """Forgets a device; what it says from now on is nobody's."""
        self._buried.add(name)
        number = self._strike(name)
        if number is not None:
            self._server.disconnect(number, "this run goes on without it; join again")
        return DeviceLost(name, how, self.what_now, silent=silent)

    def _strike(self, name: str) -> int | None:
        """Takes a device off every list; returns the number of its connection, if it has one."""
        number = self._numbers.pop(name, None)
        if number is not None:
            self._names.pop(number, None)
        for known in (self.specs, self.hellos, self.links):
            known.pop(name, None)
        return number
