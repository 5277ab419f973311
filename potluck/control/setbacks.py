"""How often a run may start again: losses are survived, but not a batch that kills whoever trains it."""

from __future__ import annotations

from msgspec.structs import replace

from potluck.types import Value

_VICTIMS = 2  # of one round, before its samples are to blame
_TRIES = 3  # of a plan whose devices are all there and do not reach each other


UnreachedPair = tuple[str, str]  # devices that did not reach each other, by name


class Setbacks(Value, frozen=True, kw_only=True):
    """What went wrong since the last committed round."""

    round: int = -1
    victims: tuple[str, ...] = ()
    nobody_lost: int = 0
    pairs: tuple[UnreachedPair, ...] = ()  # who did not reach each other, each time

    def after(
        self, committed: int, in_training: bool, lost: tuple[str, ...], between: UnreachedPair | None = None
    ) -> Setbacks:
        """With one more setback.

        `in_training`: the round after the committed ones was under way, so that it may be what a device died of.
        """
        known = self if committed == self.round else Setbacks(round=committed)
        if not lost:
            named = () if between is None else ((min(between), max(between)),)
            return replace(known, nobody_lost=known.nobody_lost + 1, pairs=(*known.pairs, *named))
        # Others that vanish in the same moment have the same cause.
        return replace(known, victims=(*known.victims, lost[0])) if in_training else known

    @property
    def too_many(self) -> str | None:
        """Why the run must stop, in words, or None."""
        if self.nobody_lost > _TRIES:
            return f"all devices are here, and {_TRIES} times some of them did not reach each other"
        if len(self.victims) >= _VICTIMS:
            return f"round {self.round} was the last of {' and of '.join(self.victims)}: its samples may be the cause"
        return None
