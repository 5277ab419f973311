"""A testbed on which runs lose devices, and what is known of each model on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.recovery.extent import Extent, loss_s, run_s
from benchmarks.recovery.jobs import job_of, plan_of
from benchmarks.recovery.protection import protection
from benchmarks.recovery.scenarios import ROUNDS, Scenario
from benchmarks.recovery.session import Outcome, Setup, run
from benchmarks.recovery.tally import Tally
from benchmarks.testbed import Testbed
from benchmarks.throughput.measure import say
from benchmarks.time_limit import TimeLimit
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job


@dataclass
class Bench:
    """A testbed, and the time that there is."""

    bed: Testbed
    folder: Path
    limit: TimeLimit
    _prepared: dict[str, PreparedJob] = field(default_factory=dict)

    def prepared(self, model: str) -> PreparedJob:
        """The job of a model, made ready once."""
        if model not in self._prepared:
            self._prepared[model] = prepare_job(job_of(model))
        return self._prepared[model]

    def setup(self, model: str, rounds: int | None = None) -> Setup:
        """A run of a model."""
        count, profile = rounds or ROUNDS.get(model, 0), self.folder / f"{model}-profile.json"
        return Setup(model, plan_of(model, self.prepared(model).facts), count, profile)

    def whole(self, model: str) -> tuple[Outcome, dict[str, torch.Tensor]]:
        """A run in which nothing happens, and the weights that it starts from."""
        found = run(self.bed, self.setup(model), self.folder / f"{model}-whole", None, 0, 0)
        if found.problem:
            raise click.ClickException(f"{model}: with nobody lost: {found.problem}")
        return found, dict(self.prepared(model).built.state)

    def protections(self, extent: Extent, models: tuple[str, ...]) -> dict[str, Any]:
        """By how much copies make training dearer, of all models or of these."""
        found = {}
        for model, rounds in extent.protected.items():
            name = f"{model}: what copies cost"
            if (not models or model in models) and self.limit.fits(name, run_s(model, rounds)):
                with self.limit.piece(run_s(model, rounds)):
                    found[model] = self._protection(model, rounds, extent.unprotected_s[model])
        return found

    def _protection(self, model: str, rounds: int, unprotected_s: float) -> dict[str, Any] | None:
        setup = replace(self.setup(model, rounds), first_copy_s=unprotected_s)
        found = protection(run(self.bed, setup, self.folder / f"{model}-protected", None, 0, 0))
        say(f"{model}: {found}")
        return asdict(found) if found is not None else None

    def survive(self, tally: Tally, planned: Iterable[tuple[Scenario, int]]) -> None:
        """Runs scenarios; before the first of a model, a run in which nothing happens."""
        wholes: dict[str, tuple[Outcome, dict[str, torch.Tensor]]] = {}
        for scenario, seed in planned:
            model = scenario.model
            usual_s = loss_s(model) + (0.0 if model in wholes else run_s(model))
            if not self.limit.fits(f"{model}: {scenario.name}", usual_s):
                continue
            with self.limit.piece(usual_s):
                if model not in wholes:
                    wholes[model] = self.whole(model)
                one = replace(self.setup(model), how=scenario.how)
                folder = self.folder / f"{model}-{tally.ran}"
                outcome = run(self.bed, one, folder, scenario.deed, scenario.after, seed)
                tally.add(scenario, outcome, *wholes[model])
