"""Does it survive, how soon does it go on, and is anything lost?

    python -m benchmarks.recovery --quick --json

Devices of the fleet `lab` at 100 Mbit/s, and their coordinator, are killed, frozen, cut off, sent away and added while
they train; every run is compared with one in which nothing happened. Needs root (see docs/testbed.md).
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.recovery.baselines import (
    LOST_AFTER,
    MOMENTS,
    cold_restart,
    heavy_against_ours,
    ours_after_a_loss,
    rate,
    switch_s,
)
from benchmarks.recovery.jobs import job_of, plan_of
from benchmarks.recovery.protection import protection
from benchmarks.recovery.scenarios import CNN, GPT, ROUNDS, Scenario, scenarios
from benchmarks.recovery.session import Outcome, Setup, run
from benchmarks.recovery.tally import Tally, spread
from benchmarks.recovery.timeline import timeline
from benchmarks.testbed import Testbed, TestbedMissing, check_machine, ended_by_signals
from benchmarks.throughput.cells import FLEETS
from benchmarks.throughput.machine import machine
from benchmarks.throughput.measure import say
from potluck.coordinator.samples.prepared_job import prepare_job

LARGE = "resnet50"
COPIED_AFTER = {LARGE: 20, CNN: 5}  # rounds: copies are whole by then
PROTECTED = {GPT: 140, CNN: 45}  # rounds: enough for a dozen copies, and some without
UNPROTECTED_S = {GPT: 25.0, CNN: 100.0}  # of these without
AFTERWARDS = (20, 70)  # rounds after the loss over which the rate counts


@dataclass
class Bench:
    """A testbed and what is known of each model on it."""

    bed: Testbed
    folder: Path

    def setup(self, model: str, rounds: int | None = None) -> Setup:
        """A run of a model."""
        prepared = prepare_job(job_of(model))
        count = rounds or ROUNDS.get(model, 0)
        return Setup(model, plan_of(model, prepared.facts), count, self.folder / f"{model}-profile.json")

    def whole(self, model: str) -> tuple[Outcome, dict[str, torch.Tensor]]:
        """A run in which nothing happens, and the weights that it starts from."""
        found = run(self.bed, self.setup(model), self.folder / f"{model}-whole", None, 0, 0)
        if found.problem:
            raise click.ClickException(f"{model}: with nobody lost: {found.problem}")
        return found, dict(prepare_job(job_of(model)).built.state)

    def protection(self, model: str) -> dict[str, Any] | None:
        """By how much copies make training dearer."""
        setup = replace(self.setup(model, PROTECTED[model]), first_copy_s=UNPROTECTED_S[model])
        found = protection(run(self.bed, setup, self.folder / f"{model}-protected", None, 0, 0))
        say(f"{model}: {found}")
        return asdict(found) if found is not None else None

    def survive(self, tally: Tally, planned: list[tuple[Scenario, int]]) -> None:
        """Runs scenarios."""
        for model in sorted({scenario.model for scenario, _ in planned}):
            whole, first = self.whole(model)
            for scenario, seed in planned:
                if scenario.model == model:
                    setup = self.setup(model)
                    one = Setup(model, setup.plan, setup.rounds, setup.profile, how=scenario.how)
                    folder = self.folder / f"{model}-{tally.ran}"
                    tally.add(scenario, run(self.bed, one, folder, scenario.deed, scenario.after, seed), whole, first)

    def compare(self) -> tuple[dict[str, Any], str]:
        """How soon it goes on beside what else could be done, and how fast it is then; and a picture of it."""
        found: dict[str, Any] = {"heavy_s": {}, "ours_s": {}, "heavy_ratio": {}}
        pictures: dict[str, Outcome] = {}
        for model in (LARGE, CNN):
            both = heavy_against_ours(self.bed, self.setup(model), COPIED_AFTER[model], self.folder)
            found["ours_s"][model], found["heavy_s"][model] = switch_s(both["ours"]), switch_s(both["heavy"])
            found["heavy_ratio"][model] = found["heavy_s"][model] / found["ours_s"][model]
        losses = [self._loss(after, AFTERWARDS[1] + 2 if after == LOST_AFTER else 4) for after in MOMENTS]
        ours = losses[-1]
        best = self._best(ours)
        cold = cold_restart(self.bed, self.setup(GPT), self.folder / "cold", statistics.median_low(MOMENTS))
        heavy = run(
            self.bed, Setup(GPT, self.setup(GPT).plan, LOST_AFTER + 8, self.setup(GPT).profile, how="heavy"),
            self.folder / "heavy", lambda here: here.bed.kill("nx"), LOST_AFTER, 2,
        )  # fmt: skip
        pictures = {"potluck": ours, "heavy rescheduling": heavy, "cold restart": cold}
        back = [outcome.back_after_s() for outcome in losses]
        theirs = cold.back_after_s()
        say(f"{GPT}: back where it was after {back} s, with a cold restart after {theirs} s")
        found["back_after_s"] = {"potluck": back, "heavy rescheduling": heavy.back_after_s(), "cold restart": theirs}
        known = [seconds for seconds in back if seconds is not None]
        mine = statistics.fmean(known) if len(known) == len(back) else None
        found["restart_ratio"] = theirs / mine if mine and theirs else None
        found["restart_ratio_warm"] = (theirs - cold.warm_s) / mine if mine and theirs else None
        found["after_over_best"] = best
        ours.rounds = [r for r in ours.rounds if r.round < LOST_AFTER + 40]
        ours.committed_s = ours.committed_s[: len(ours.rounds)]
        return found, timeline(pictures, f"Rounds committed through the loss of a device ({GPT}, lab at 100 Mbit/s)")

    def _loss(self, after: int, more: int) -> Outcome:
        """A loss after so many rounds."""
        return ours_after_a_loss(self.bed, self.setup(GPT), self.folder / f"lost-after-{after}", after, more)

    def _best(self, ours: Outcome) -> float | None:
        """The rate after a loss over that of the plan which the planner finds for those who are left."""
        after = [r for r in ours.rounds if AFTERWARDS[0] <= r.round - LOST_AFTER < AFTERWARDS[1]]
        setup = self.setup(GPT)
        one = Setup(GPT, setup.plan, 24, setup.profile, anew=True, without=("nx",))
        best = run(self.bed, one, self.folder / "best", None, 0, 0)
        say(f"{GPT}: {rate(after):.2f} rounds/s after the loss, {rate(best.rounds[4:]):.2f} by the best plan")
        return rate(after) / rate(best.rounds[4:]) if after and best.rounds[4:] else None


def _planned(quick: bool, seeds: int, models: tuple[str, ...]) -> Iterator[tuple[Scenario, int]]:
    for scenario in scenarios(quick):
        if not models or scenario.model in models:
            for seed in range(1 if quick else seeds):
                yield scenario, seed


@click.command()
@click.option("--quick", is_flag=True, help="Every scenario once.")
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="Of a full run: how often each.")
@click.option("--model", "models", multiple=True, type=click.Choice([GPT, CNN]), help="Only these; may be repeated.")
@click.option(
    "--scenarios/--no-scenarios",
    "with_losses",
    default=True,
    help="Whether to lose devices in every way; without, figures are added to those that the folder has.",
)
@click.option("--compare/--no-compare", "with_others", default=True, help="Whether to run the baselines.")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and picture.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(
    quick: bool, seeds: int, models: tuple[str, ...], with_losses: bool, with_others: bool, results: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Loses devices. Example: python -m benchmarks.recovery --quick --model small_gpt --no-compare"""
    ended_by_signals()
    try:
        check_machine()
    except TestbedMissing as error:
        raise click.ClickException(str(error)) from None
    tally, began, picture = Tally(), time.monotonic(), ""
    with tempfile.TemporaryDirectory() as name, Testbed(FLEETS / "lab-100.toml") as bed:
        bench = Bench(bed, Path(name))
        bench.survive(tally, list(_planned(quick, seeds, models)) if with_losses else [])
        overhead = {model: bench.protection(model) for model in models or PROTECTED}
        others: dict[str, Any] = {}
        if with_others:
            others, picture = bench.compare()
    lost: dict[str, Any] = {
        "quick": quick, "scenarios": tally.ran, "failed": tally.failed, "samples_lost": tally.lost,
        "samples_doubled": tally.doubled, "equal": tally.differences, "detect_s": spread(
            [*tally.detect_s["closed"], *tally.detect_s["silent"]]
        ), "detect_closed_s": spread(tally.detect_s["closed"]), "detect_silent_s": spread(tally.detect_s["silent"]),
        "switch_s": spread(tally.switch_s), "rounds_replayed": tally.replayed,
        "recover_rounds": spread(chain(*tally.recover_rounds.values())), "recover_rounds_each": tally.recover_rounds,
    }  # fmt: skip
    word = "recovery-quick" if quick else "recovery"
    file = None if results is None else results / f"{word}.json"
    known = {} if with_losses or file is None or not file.exists() else json.loads(file.read_text())
    seconds = known.get("seconds", 0.0) + time.monotonic() - began
    overhead = {**known.get("protection_overhead", {}), **overhead}
    everything = {
        **known, **(lost if with_losses else {}), "protection_overhead": overhead, **others, "machine": machine(),
        "seconds": seconds,
    }  # fmt: skip
    for key, value in everything.items():
        print(f"{key}: {value}")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(everything, indent=1) + "\n")
        if picture:
            file.with_suffix(".svg").write_text(picture)
    if as_json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()
