"""When devices copy their state, and from which round on all of it is in two places. Pure: the caller brings the time.

Each device keeps a copy of its own state, to go back to. Of a stage that one device holds alone, another device, its
guardian, keeps a second one; members of a group have each other, and where one group holds the whole model, nothing is
copied. A copy takes a tenth of a link, or half of what training leaves idle of it, in small pieces. The time between
copies follows Young: the root of twice what one costs, times the time between losses; and copies take at most a
fortieth of any device's time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from potluck.types import CopyLine, Held, Plan, Profile

_NOT_MEASURED_BYTES_S = 12.5e6  # 100 Mbit/s: the slowest wired network that is still common
_PART_OF_WHAT_IS_IDLE = 0.5  # the other half is for what training sends in bursts
_MOST_OF_A_DEVICE = 0.025  # of its time: a slowdown that nobody notices


class CopyRules(NamedTuple):
    """How often states are copied, and what copies may take; users choose both."""

    # Devices at home are switched off and carried away: a loss every few minutes is the worst that is still of use. The
    # time between copies goes with the root of it, so that a wrong guess costs little.
    between_losses_s: float = 150.0
    part_of_a_link: float = 0.1  # at least, while training uses all of it: rounds take a tenth longer at most


USUAL_COPIES = CopyRules()


def guardians(plan: Plan) -> dict[str, str]:
    """Device that holds a stage alone → the one that keeps a second copy: the first of the next stage."""
    found = {}
    for index, stage in enumerate(plan.stages):
        if len(stage.group) == 1 and len(plan.stages) > 1:
            found[stage.group[0].device] = plan.stages[(index + 1) % len(plan.stages)].group[0].device
    return found


def wards(plan: Plan, device: str) -> tuple[str, ...]:
    """Devices whose second copy a device keeps."""
    return tuple(ward for ward, guardian in guardians(plan).items() if guardian == device)


def lines(profile: Profile, rules: CopyRules) -> dict[tuple[str, str], CopyLine]:
    """(device, other) → what copies may take of the link between them; one that crosses a trunk is shared too."""
    return {
        (link.source, link.target): CopyLine(
            link.bandwidth_bytes_s, shared=profile.medium != "full" or bool(link.trunk), part=rules.part_of_a_link
        )
        for link in profile.links
        if link.bandwidth_bytes_s
    }


def unmeasured(rules: CopyRules) -> CopyLine:
    """What copies may take of a link of which nothing is known."""
    return CopyLine(_NOT_MEASURED_BYTES_S, shared=True, part=rules.part_of_a_link)


def copy_rate(line: CopyLine, used_bytes_s: float | None) -> float:
    """Bytes per second for copies over a line, given what training sends meanwhile, if known.

    Of a medium that others share, nobody knows what is idle.
    """
    least = line.part * line.bytes_s
    if line.shared or used_bytes_s is None:
        return least
    return max(least, _PART_OF_WHAT_IS_IDLE * (line.bytes_s - used_bytes_s))


class Copying:
    """Copies of one term's states."""

    def __init__(
        self, plan: Plan, term: int, *, first_s: float = -math.inf, enabled: bool = True,
        rules: CopyRules = USUAL_COPIES,
    ) -> None:  # fmt: skip
        """`first_s` is when the first copy may be made: what was trained before is soon trained again."""
        guarded = guardians(plan)
        # With several stages, one may have committed a round of which another never heard.
        self._enabled = enabled and (bool(guarded) or len(plan.stages) > 1)
        self._term, self._rules = term, rules
        self._keepers: dict[int, set[str]] = {}  # stage → who must have a copy
        for index, stage in enumerate(plan.stages):
            members = {member.device for member in stage.group}
            self._keepers[index] = members | {guarded[d] for d in members if d in guarded}
        self._missing: set[tuple[int, str]] = set()  # (stage, keeper) of the copy under way
        self._round, self._began_s, self._next_s = -1, 0.0, first_s
        self._cost_s = 0.0  # of training, of the copy under way
        self.took_s: float | None = None
        self.cost_s = 0.0  # of training, on the device to which the last copy cost most
        self.point: int | None = None  # the newest round of which everything is in two places

    @property
    def period_s(self) -> float:
        """Seconds from the beginning of one copy to that of the next, if it is done by then.

        Where no device says what it costs, that is what it takes of the links while it is under way.
        """
        took_s = self.took_s or 0.0
        cost_s = self.cost_s or self._rules.part_of_a_link * took_s
        young_s = math.sqrt(2 * cost_s * self._rules.between_losses_s)
        return max(took_s, young_s, self.cost_s / _MOST_OF_A_DEVICE)

    def due(self, now_s: float) -> bool:
        """Whether the next round should be followed by a copy; at most one is under way."""
        return self._enabled and not self._missing and now_s >= self._next_s

    def ordered(self, round: int, now_s: float) -> None:
        """Everybody copies the state after this many rounds."""
        self._missing = {(stage, keeper) for stage, keepers in self._keepers.items() for keeper in keepers}
        self._round, self._began_s, self._cost_s = round, now_s, 0.0

    def stored(self, device: str, held: Held, now_s: float, cost_s: float = 0.0) -> bool:
        """Notes a copy that a device keeps, and what it has cost it; whether everything is in two places now."""
        if held.term != self._term or held.round != self._round:
            return False
        self._missing.discard((held.stage, device))
        self._cost_s = max(self._cost_s, cost_s)
        if self._missing or self.point == self._round:
            return False
        self.took_s, self.cost_s, self.point = now_s - self._began_s, self._cost_s, self._round
        self._next_s = self._began_s + self.period_s
        return True
