"""A search for a plan while a run trains, in a process of its own that yields to everybody.

In this process it would hold the interpreter lock that commits need, and on this machine a core that devices need.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from potluck.errors import PlanError, PotluckError
from potluck.plan.search.plan_search import Found, find_plan
from potluck.settings.extensions import load_extensions
from potluck.types import ModelFacts, Profile

_YIELDING = 10  # of niceness: a tenth of a core that somebody else wants; with 19 it would find nothing in its time
_STARTING_S = 30.0  # a slow machine that is busy otherwise, too
_PATIENCE = 6.0  # times as long as the search was given: what yields to others is late


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is looked for."""

    facts: ModelFacts
    profile: Profile
    sizes: list[tuple[int, int]]
    seconds: float
    schedule: str


class PlanRefusal(msgspec.Struct, frozen=True, tag=True):
    """Why no plan was found, in words."""

    why: str


class PlanAnswer(msgspec.Struct, frozen=True, tag=True):
    """The plan that was found."""

    found: Found


Finder = Callable[[Question], Found]


def find_here(question: Question) -> Found:
    """What `find_plan` finds."""
    return find_plan(
        question.facts, question.profile, question.sizes, seconds=question.seconds, schedule=question.schedule
    )


class SearchElsewhere:
    """Finds plans in processes of their own, of which none outlives it."""

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def __call__(self, question: Question) -> Found:
        """What `find_plan` finds; a PlanError where that finds nothing, or the process does not do its work."""
        if self._closed:
            raise PlanError("plan: nothing is looked for any more")
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._processes.add(process)
        try:
            told, _ = process.communicate(msgspec.msgpack.encode(question), _STARTING_S + _PATIENCE * question.seconds)
            answer = msgspec.msgpack.decode(told, type=PlanAnswer | PlanRefusal)
        except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
            took = f"after {time.monotonic() - began:.0f} s"
            raise PlanError(f"plan: the process that looks for one failed {took} ({type(error).__name__})") from error
        finally:
            self._processes.discard(process)
            _end(process)
        if isinstance(answer, PlanRefusal):
            raise PlanError(answer.why)
        return answer.found

    def close(self) -> None:
        """Ends those that still search."""
        self._closed = True
        for process in list(self._processes):
            process.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def answer(question: Question) -> PlanAnswer | PlanRefusal:
    """Looks for it, here."""
    try:
        load_extensions()
        return PlanAnswer(find_here(question))
    except PotluckError as error:
        return PlanRefusal(str(error))


def main() -> None:
    os.nice(_YIELDING)
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(question)))


if __name__ == "__main__":
    main()
