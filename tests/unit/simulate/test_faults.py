"""What goes wrong in a simulated run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.simulate import faults
from potluck.simulate.faults import SILENCE_S, Faults
from potluck.simulate.world import World
from potluck.types import COORDINATOR
from potluck.wire.messages import Leaving


class Scene:
    """Devices that remember what befell them."""

    def __init__(self, *names: str, seed: int = 0) -> None:
        self.world, self.up = World(seed), True
        self.happened: list[tuple[object, ...]] = []
        self.devices = {name: self._device(name) for name in names}

    def _device(self, name: str) -> Any:
        device = SimpleNamespace(name=name, alive=True)

        def kill() -> None:
            device.alive = False
            self.happened.append(("killed", name))

        device.kill, device.freeze = kill, lambda seconds: self.happened.append(("frozen", name, seconds))
        return device

    def crash(self, seconds: float) -> None:
        self.happened.append(("crashed", seconds))

    def lose(self, device: str, why: str, *, silent: bool = False) -> None:
        self.happened.append(("lost", device, silent, self.world.now))

    def to_coordinator(self, device: str, message: object) -> None:
        self.happened.append(("said", device, message))

    def newcomer(self, name: str) -> None:
        self.happened.append(("new", name))


def struck(kind: str, seconds: float, monkeypatch: pytest.MonkeyPatch, *names: str) -> Scene:
    """After one fault of this kind, and all that follows."""
    monkeypatch.setattr(faults, "_KINDS", (kind,))
    monkeypatch.setattr(faults, "_LENGTHS_S", (seconds,))
    monkeypatch.setattr(faults, "_RATES", (1.0,))
    scene = Scene(*(names or ("a",)))
    Faults(cast(Any, scene), 1).chance("a", "a test")
    return scene


def after(scene: Scene) -> list[tuple[object, ...]]:
    scene.world.run(100.0)
    return scene.happened


def test_no_more_happens_than_was_allowed_and_the_same_seed_is_the_same_run() -> None:
    def run(seed: int, most: int) -> list[str]:
        it = Faults(cast(Any, Scene("a", "b", seed=seed)), most)
        for _ in range(2000):
            it.chance("a", "an order")
        return it.happened

    assert all(len(run(seed, 3)) <= 3 for seed in range(20))
    assert run(1, 0) == []
    assert run(5, 3) == run(5, 3) != []
    assert len({tuple(run(seed, 3)) for seed in range(20)}) > 10


def test_who_is_killed_is_lost_soon_and_the_last_one_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, lost = after(struck("kill", 1.0, monkeypatch, "a", "b"))
    assert (killed[0], lost[:3]) == ("killed", ("lost", killed[1], False))
    assert cast(float, lost[3]) <= 0.2
    assert after(struck("kill", 1.0, monkeypatch, "a")) == []


@pytest.mark.parametrize(("seconds", "missed"), [(SILENCE_S - 1, False), (SILENCE_S, True)])
@pytest.mark.parametrize("kind", ["freeze", "isolate", "one_way", "alone"])
def test_who_is_silent_for_long_is_missed(
    kind: str, seconds: float, missed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [what for what in after(struck(kind, seconds, monkeypatch)) if what[0] == "lost"]
    assert lost == ([("lost", "a", True, SILENCE_S)] if missed else [])


@pytest.mark.parametrize(
    ("kind", "there", "back"),
    [("one_way", False, True), ("isolate", False, False), ("alone", False, False), ("freeze", True, True)],
)
def test_lines_are_cut_one_way_or_both(kind: str, there: bool, back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: Callable[[str, str], bool] = struck(kind, 1.0, monkeypatch).world.passes
    assert (passes("a", COORDINATOR), passes(COORDINATOR, "a")) == (there, back)


def test_the_coordinator_crashes_only_while_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert struck("crash", 2.0, monkeypatch).happened == [("crashed", 2.0)]
    scene = Scene("a")
    scene.up = False
    Faults(cast(Any, scene), 1).chance("a", "a test")
    assert scene.happened == []


def test_devices_leave_and_come_by_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert struck("leave", 1.0, monkeypatch).happened == [("said", "a", Leaving())]
    scene = struck("join", 1.0, monkeypatch)
    it = Faults(cast(Any, scene), 2)
    it.chance("a", "a test")
    it.chance("a", "a test")
    assert scene.happened == [("new", "n1")] * 2 + [("new", "n2")]
