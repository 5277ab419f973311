"""Which rounds may be begun, are ready, and may be committed, and in which order.

Everybody who has a part in a round asks the same questions: the coordinator's state machine and its round loop, a
device's state machine, and the simulator. With a window of 1 the answers are lock-step.
"""

from __future__ import annotations

from msgspec.structs import replace

from potluck.types import Value


class OpenRounds(Value, frozen=True, kw_only=True):
    """Rounds that were begun and are not committed yet. What may not happen changes nothing."""

    devices: tuple[str, ...] = ()  # whose reports every round awaits
    window: int = 1  # most rounds that may be open at once
    first: int = 0  # the rounds before it are committed
    reports: tuple[tuple[str, ...], ...] = ()  # of each open round in order: who is ready with it

    @property
    def next(self) -> int:
        """The round that comes after those that were begun."""
        return self.first + len(self.reports)

    @property
    def complete(self) -> tuple[int, ...]:
        """Rounds that may be committed, in order: everybody is ready with them and with all before."""
        done = [len(who) == len(self.devices) for who in self.reports]
        return tuple(range(self.first, self.first + (done.index(False) if False in done else len(done))))

    def may_begin(self, round: int) -> bool:
        """Whether it is the next one, and there is room in the window."""
        return round == self.next and len(self.reports) < self.window

    def may_commit(self, round: int) -> bool:
        """Whether it is the oldest open one, and everybody is ready with it."""
        return round == self.first and round in self.complete

    def awaited(self, round: int) -> tuple[str, ...]:
        """Who has not reported this round, if it is open."""
        if not self.first <= round < self.next:
            return ()
        return tuple(d for d in self.devices if d not in self.reports[round - self.first])

    def begin(self, round: int) -> OpenRounds:
        """Everybody was told to train it."""
        return replace(self, reports=(*self.reports, ())) if self.may_begin(round) else self

    def report(self, device: str, round: int) -> OpenRounds:
        """A device is ready with an open round; that counts once."""
        if device not in self.awaited(round):
            return self
        return self._told(round, (*self.reports[round - self.first], device))

    def again(self, round: int) -> OpenRounds:
        """An open round is trained once more: what was reported of it counts no longer."""
        return self._told(round, ()) if self.first <= round < self.next else self

    def written(self, round: int) -> OpenRounds:
        return replace(self, first=round + 1, reports=self.reports[1:]) if self.may_commit(round) else self

    def abandon(self) -> OpenRounds:
        """What was begun is forgotten; it is begun anew, if at all."""
        return replace(self, reports=())

    def _told(self, round: int, who: tuple[str, ...]) -> OpenRounds:
        at = round - self.first
        return replace(self, reports=(*self.reports[:at], who, *self.reports[at + 1 :]))
