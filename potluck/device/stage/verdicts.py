"""The two ways a round is committed: by asking the coordinator, or, for a plan of one device, by itself."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence

from potluck.control.commit import judge
from potluck.errors import Cancelled, DeviceError, LinkTimeout
from potluck.wire.messages import Begin, Committed, Ready, Verdict


class AskCoordinator:
    """Reports ready and waits for the verdict."""

    def __init__(self, send: Callable[[Ready], None], verdicts: queue.Queue[Verdict | None], timeout_s: float) -> None:
        self._send, self._verdicts, self._timeout_s = send, verdicts, timeout_s

    def report(self, ready: Ready, begin: Begin, attempt: int) -> None:
        self._send(ready)

    def verdict(self, begin: Begin) -> Verdict:
        try:
            verdict = self._verdicts.get(timeout=self._timeout_s)
        except queue.Empty:
            raise LinkTimeout(f"no verdict on round {begin.round} after {self._timeout_s:.0f} s") from None
        if verdict is None:
            raise Cancelled("the run was stopped while waiting for a verdict")
        if verdict.round != begin.round:
            raise DeviceError(f"verdict on round {verdict.round} while in round {begin.round}")
        return verdict

    def heard(self) -> list[Verdict]:
        """Verdicts that came and were not asked for yet, where none will come any more."""
        found: list[Verdict] = []
        with contextlib.suppress(queue.Empty):
            while (verdict := self._verdicts.get_nowait()) is not None:
                found.append(verdict)
        return found


class DecideAlone:
    """Judges its own report by the coordinator's rule and tells it afterwards: no message to wait for."""

    def __init__(
        self, me: str, send: Callable[[Ready | Committed], None], parameters: Sequence[str], clip_norm: float | None,
        goes_on: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`goes_on` says whether somebody would hear of a commit: one that nobody knows of cannot be used."""
        self._me, self._send, self._parameters, self._clip_norm = me, send, parameters, clip_norm
        self._goes_on = goes_on

        self._reported: tuple[Ready, int] | None = None

    def report(self, ready: Ready, begin: Begin, attempt: int) -> None:
        self._reported = ready, attempt

    def verdict(self, begin: Begin) -> Verdict:
        if self._reported is None:
            raise DeviceError(f"a verdict on round {begin.round}, which is not ready")
        ready, attempt = self._reported
        judgement = judge({self._me: ready}, self._parameters, self._clip_norm, attempt)
        if not self._goes_on():
            raise Cancelled("the coordinator is gone, or has given the plan up")
        if judgement.kind == "commit":
            self._send(Committed(ready=ready, loss=judgement.loss, gradient_norm=judgement.gradient_norm))
        elif judgement.kind == "stop":
            self._send(ready)
        return Verdict(round=begin.round, kind=judgement.kind, lr_scale=begin.lr_scale, clip=judgement.clip)

    def heard(self) -> list[Verdict]:
        """Nobody else decides."""
        return []
