"""What happens to runs: every fault once or more often, at moments that differ."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from benchmarks.recovery.session import Deed, Happening
from potluck.types import COORDINATOR

GPT, CNN = "small_gpt", "mobilenet_v2"
OUT_OF_MEMORY = "run out of memory"
_SPARE_BYTES, _HUNGRY_S = 30 * 10**6, 30.0
_HUNGRY = "import time\nkept = []\nwhile True:\n    kept.append(b'x' * 10**7)\n    time.sleep(0.02)"
# Rounds: copies are under way after the first number and whole after the second; the third is all there are.
EARLY, LATE, ROUNDS = {GPT: 4, CNN: 2}, {GPT: 14, CNN: 5}, {GPT: 18, CNN: 9}


@dataclass(frozen=True)
class Scenario:
    """Something that happens to a run."""

    name: str
    model: str
    deed: Deed
    after: int
    needs_loss: bool = True  # a device is declared lost by it
    how: str = "ours"

    @property
    def decides(self) -> bool:
        """Whether it is one of the few that a quick run has beside the baselines."""
        return self.name in _DECIDING


def kill(*devices: str, apart_s: float = 0.0) -> Deed:
    """Ends devices, at once or one after the other."""

    def deed(here: Happening) -> None:
        for device in devices:
            here.bed.kill(device)
            time.sleep(apart_s)

    return deed


def _return(here: Happening) -> None:
    here.bed.kill("tx2-1")
    time.sleep(4.0)
    here.join("tx2-1")


def _part(here: Happening) -> None:
    here.bed.partition("tx2-1", "tx2-2")
    here.bed.partition("tx2-2", "tx2-1")


def _run_out_of_memory(here: Happening) -> None:
    """Something else on a device takes what is left of its memory, and the system ends whoever has most: its agent."""
    bed, device = here.bed, "tx2-2"
    before, deadline = bed.oom_kills(device), time.monotonic() + _HUNGRY_S
    used = sum(psutil.Process(pid).memory_info().rss for pid in bed.processes(device))
    bed.set_memory(device, used + _SPARE_BYTES)
    hungry = bed.start(device, [sys.executable, "-I", "-c", _HUNGRY])
    while bed.oom_kills(device) == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{device} did not run out of memory in {_HUNGRY_S:.0f} s")
        time.sleep(0.02)
    hungry.kill()
    hungry.wait(10.0)
    bed.set_memory(device, None)


def scenarios(quick: bool) -> Iterator[Scenario]:
    """Each on one model where it is to be quick, those that decide first, and on both otherwise.

    Devices are those of the models' plans.
    """
    for name, deed, how in sorted(_EVENTS, key=lambda event: _place(event[0])) if quick else _EVENTS:
        for model in (CNN if name == _OF_A_GROUP else GPT,) if quick else (GPT, CNN):
            early = "replication" in name
            loss = name not in _NOBODY_LOST
            yield Scenario(name, model, deed, (EARLY if early else LATE)[model], loss, how)


_EVENTS: tuple[tuple[str, Deed, str], ...] = (
    ("kill one that has its stage alone", kill("nx"), "ours"),
    ("kill another", kill("tx2-1"), "ours"),
    ("kill the last of the pipeline", kill("nano-1"), "ours"),
    ("kill during replication", kill("tx2-2"), "ours"),
    ("kill two neighbours at once", kill("nx", "tx2-1"), "ours"),
    ("kill one more during the recovery", kill("tx2-2", "nano-1", apart_s=0.15), "ours"),
    ("freeze", lambda here: here.bed.freeze("tx2-1"), "ours"),
    ("pull the cable", lambda here: here.bed.cut("nx"), "ours"),
    ("one way only, to the coordinator", lambda here: here.bed.partition("tx2-2", COORDINATOR), "ours"),
    ("kill and restart the coordinator", Happening.restart, "ours"),
    ("the coordinator dies between ledger and commit", Happening.go_on, "dies"),
    ("leave in order", lambda here: here.leave("tx2-1"), "ours"),
    ("vanish and come back", _return, "ours"),
    ("part two that talk to each other", _part, "ours"),
    (OUT_OF_MEMORY, _run_out_of_memory, "ours"),
)
_NOBODY_LOST = (
    "kill and restart the coordinator", "the coordinator dies between ledger and commit", "leave in order",
    "part two that talk to each other",
)  # fmt: skip
_DECIDING = (
    "kill one that has its stage alone", "kill two neighbours at once", "kill one more during the recovery",
    "freeze", "kill and restart the coordinator", "the coordinator dies between ledger and commit",
)  # fmt: skip
_OF_A_GROUP = "kill another"  # with which, of these models, only the network with BatchNorm shares a stage


def _place(name: str) -> int:
    """In a quick run."""
    first = (*_DECIDING, _OF_A_GROUP)
    return first.index(name) if name in first else len(first)
