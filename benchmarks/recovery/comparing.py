"""How soon it goes on after a loss beside what else could be done, and how fast it is then."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks.recovery.baselines import cold_restart, heavy_against_ours, ours_after_a_loss, rate, switch_s
from benchmarks.recovery.bench import Bench
from benchmarks.recovery.extent import BEST_S, COLD_S, COPIED_AFTER, HEAVY_LOSS_S, HEAVY_S, Extent, loss_s
from benchmarks.recovery.scenarios import GPT, kill
from benchmarks.recovery.session import Outcome, Setup, run
from benchmarks.recovery.timeline import timeline
from benchmarks.throughput.measure import say

OURS, HEAVY, COLD = "potluck", "heavy rescheduling", "cold restart"
BEST = f"{GPT}: the best plan"
TITLE = f"Rounds committed through the loss of a device ({GPT}, lab at 100 Mbit/s)"
SOON, SHOWN = 4, 40  # rounds after a loss: until it is back, and in the picture
BEST_ROUNDS, WARM_UP = 24, 4


@dataclass
class Comparison:
    """Ours beside the baselines, as far as there is time."""

    bench: Bench
    extent: Extent
    found: dict[str, Any] = field(default_factory=lambda: {"heavy_s": {}, "ours_s": {}, "heavy_ratio": {}})

    def run(self) -> tuple[dict[str, Any], str]:
        """Figures and a picture."""
        within, extent = self.bench.limit.within, self.extent
        for model in extent.heavy:
            within(f"{model}: {HEAVY}", HEAVY_S[model], partial(self._heavy, model))
        losses = [self._loss(after) for after in extent.moments]
        ours, best = losses[-1], None
        if ours is None:
            self.bench.limit.left_out.append(BEST)  # there is nothing to compare it with
        else:
            best = within(BEST, BEST_S, partial(self._best, ours))
        cold = within(f"{GPT}: {COLD}", COLD_S, self._cold)
        heavy = within(f"{GPT}: {HEAVY}", HEAVY_LOSS_S, self._heavy_loss) if extent.in_picture else None
        self.found["after_over_best"] = best
        self._back(losses, heavy, cold)
        pictures = {OURS: _shown(ours, self._lost_after), HEAVY: heavy, COLD: cold}
        known = {name: outcome for name, outcome in pictures.items() if outcome is not None}
        return self.found, timeline(known, TITLE) if known else ""

    @property
    def _lost_after(self) -> int:
        return self.extent.moments[-1]

    def _heavy(self, model: str) -> None:
        """A loss dealt with in both ways."""
        bench, found = self.bench, self.found
        both = heavy_against_ours(bench.bed, bench.setup(model), COPIED_AFTER[model], bench.folder)
        found["ours_s"][model], found["heavy_s"][model] = switch_s(both["ours"]), switch_s(both["heavy"])
        found["heavy_ratio"][model] = found["heavy_s"][model] / found["ours_s"][model]

    def _loss(self, after: int) -> Outcome | None:
        """A loss after so many rounds; after the last of them the rate counts, too."""
        bench, more = self.bench, self.extent.afterwards[1] + 2 if after == self._lost_after else SOON
        folder = bench.folder / f"lost-after-{after}"
        piece = partial(ours_after_a_loss, bench.bed, bench.setup(GPT), folder, after, more)
        return bench.limit.within(f"{GPT}: lost after {after} rounds", loss_s(GPT, after + more), piece)

    def _best(self, ours: Outcome) -> float | None:
        """The rate after a loss over that of the plan which the planner finds for those who are left."""
        first, end = self.extent.afterwards
        after = [r for r in ours.rounds if first <= r.round - self._lost_after < end]
        setup = self.bench.setup(GPT)
        one = Setup(GPT, setup.plan, BEST_ROUNDS, setup.profile, anew=True, without=("nx",))
        best = run(self.bench.bed, one, self.bench.folder / "best", None, 0, 0)
        usual = best.rounds[WARM_UP:]
        say(f"{GPT}: {rate(after):.2f} rounds/s after the loss, {rate(usual):.2f} by the best plan")
        return rate(after) / rate(usual) if after and usual else None

    def _cold(self) -> Outcome:
        moment = statistics.median_low(self.extent.moments)
        return cold_restart(self.bench.bed, self.bench.setup(GPT), self.bench.folder / "cold", moment)

    def _heavy_loss(self) -> Outcome:
        setup, after = self.bench.setup(GPT), self._lost_after
        one = Setup(GPT, setup.plan, after + 2 * SOON, setup.profile, how="heavy")
        return run(self.bench.bed, one, self.bench.folder / "heavy", kill("nx"), after, 2)

    def _back(self, losses: Sequence[Outcome | None], heavy: Outcome | None, cold: Outcome | None) -> None:
        """When it was back where it had been."""
        back = [None if outcome is None else outcome.back_after_s() for outcome in losses]
        known = [seconds for seconds in back if seconds is not None]
        mine = statistics.fmean(known) if len(known) == len(back) else None
        theirs = None if cold is None else cold.back_after_s()
        say(f"{GPT}: back where it was after {back} s, with a cold restart after {theirs} s")
        also = {} if heavy is None else {HEAVY: heavy.back_after_s()}
        self.found["back_after_s"] = {OURS: back, **also, COLD: theirs}
        self.found["restart_ratio"] = theirs / mine if mine and theirs else None
        self.found["restart_ratio_warm"] = (theirs - cold.warm_s) / mine if mine and theirs and cold else None


def _shown(ours: Outcome | None, lost_after: int) -> Outcome | None:
    """What the picture has of it."""
    if ours is None:
        return None
    rounds = [r for r in ours.rounds if r.round < lost_after + SHOWN]
    return replace(ours, rounds=rounds, committed_s=ours.committed_s[: len(rounds)])
