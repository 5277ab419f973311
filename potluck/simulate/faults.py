"""What goes wrong in a simulated run: at a random moment, to a random device, or to the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from potluck.simulate.simulated_device import Device
from potluck.simulate.world import World
from potluck.types import COORDINATOR
from potluck.wire.messages import FromAgent, Leaving

SILENCE_S = 3.0  # after which a device is missed
_KINDS = ("kill", "kill", "freeze", "isolate", "one_way", "peers", "crash", "alone", "leave", "join")
_LENGTHS_S = (0.5, 2.0, 5.0, 15.0)
_FOR_EVER_S = 1e9
_RATES = (0.002, 0.01, 0.05)  # for each order


class Scene(Protocol):
    """What faults may lay hands on."""

    @property
    def up(self) -> bool: ...

    @property
    def world(self) -> World: ...
    @property
    def devices(self) -> Mapping[str, Device]: ...
    def crash(self, seconds: float) -> None: ...
    def lose(self, device: str, why: str, *, silent: bool = False) -> None: ...
    def to_coordinator(self, device: str, message: FromAgent) -> None: ...
    def newcomer(self, name: str) -> None: ...


class Faults:
    """A few of them, each between an order and its deed."""

    def __init__(self, scene: Scene, most: int) -> None:
        self._scene, self._world, self._left = scene, scene.world, most
        self._rate = self._world.random.choice(_RATES)
        self._newcomers = 0
        self.happened: list[str] = []

    def chance(self, who: str, moment: str) -> None:
        """An order is about to be obeyed."""
        if self._left and self._world.random.random() <= self._rate:
            self._left -= 1
            self._strike(who, moment)

    def _strike(self, who: str, moment: str) -> None:
        scene, dice = self._scene, self._world.random
        alive = [d for d in scene.devices.values() if d.alive]
        kind = dice.choice(_KINDS)
        if not alive or (kind == "kill" and len(alive) < 2):
            return
        victim = scene.devices[who] if who in scene.devices and dice.random() < 0.5 else dice.choice(alive)
        self.happened.append(f"{kind} at {moment} of {who}")
        self._world.say(f"{kind} {victim.name} at {moment} of {who}")
        seconds = dice.choice(_LENGTHS_S)
        match kind:
            case "kill":
                victim.kill()
                why = f"{victim.name} was killed"
                self._world.after(dice.uniform(0.0, 0.2), lambda: scene.lose(victim.name, why))
            case "freeze":
                victim.freeze(seconds)
                self._silent(victim, seconds)
            case "isolate" | "one_way":
                self._world.cut(victim.name, "*", seconds)
                if kind == "isolate":
                    self._world.cut("*", victim.name, seconds)
                self._silent(victim, seconds)
            case "peers":
                self._world.cut(victim.name, dice.choice(alive).name, dice.choice((*_LENGTHS_S, _FOR_EVER_S)))
            case "alone":  # the coordinator hears nobody
                self._world.cut(COORDINATOR, "*", seconds)
                self._world.cut("*", COORDINATOR, seconds)
                for device in alive:
                    self._silent(device, seconds)
            case "crash":
                if scene.up:
                    scene.crash(seconds)
            case "leave":
                scene.to_coordinator(victim.name, Leaving())
            case "join":
                self._newcomers += 1
                scene.newcomer(f"n{self._newcomers}")

    def _silent(self, victim: Device, seconds: float) -> None:
        if seconds >= SILENCE_S:
            why = f"{victim.name} is silent"
            self._world.after(SILENCE_S, lambda: self._scene.lose(victim.name, why, silent=True))
