"""How often a run may start again: losses are survived, but not a batch that kills whoever trains it."""

from __future__ import annotations

from dataclasses import dataclass, field

_VICTIMS = 2  # of one round, before its samples are to blame
_TRIES = 3  # of a plan whose devices are all there and do not reach each other


@dataclass
class Setbacks:
    """What went wrong since the last committed round."""

    _round: int = -1
    _victims: list[str] = field(default_factory=list)
    _nobody_lost: int = 0

    def note(self, committed: int, in_training: bool, lost: tuple[str, ...]) -> str | None:
        """Counts one more setback; why the run must stop, in words, or None.

        `in_training`: the round after the committed ones was under way, so that it may be what a device died of.
        """
        if committed != self._round:
            self._round, self._victims, self._nobody_lost = committed, [], 0
        if not lost:
            self._nobody_lost += 1
            if self._nobody_lost > _TRIES:
                return f"all devices are here, and {_TRIES} times some of them did not reach each other"
            return None
        if in_training:
            self._victims.extend(lost[:1])  # others that vanish in the same moment have the same cause
        if len(self._victims) >= _VICTIMS:
            return f"round {committed} was the last of {' and of '.join(self._victims)}: its samples may be the cause"
        return None
