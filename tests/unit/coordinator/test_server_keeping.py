"""What becomes of a parameter server's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.coordinator.serving.server_keeping import SERVER, ServerKeeping
from potluck.errors import InputError
from potluck.metrics.records import CheckpointRecord, EvaluationRecord, IncidentRecord, Record
from potluck.tensors import checkpoint
from tests.unit.coordinator.small_job import prepared, small_job


class Server:
    """Weights that a test sets, and whether they were saved."""

    def __init__(self, keeping: ServerKeeping, value: float) -> None:
        self.lags, self.saves = False, 0
        self.weights = SimpleNamespace(vector=value)
        self.flat = SimpleNamespace(tensors=lambda v: {n: torch.full_like(t, v) for n, t in keeping.tensors.items()})

    def save(self) -> None:
        self.saves += 1


@contextmanager
def keeping(path: Path, said: list[Record], *, resume: bool = False, **more: Any) -> Iterator[ServerKeeping]:
    job = small_job(eval_data=small_job().data, **more)
    it = ServerKeeping(
        replace(prepared(), job=job), path, said.append, lambda error: pytest.fail(str(error)), lambda: 1.0,
        resume=resume,
    )  # fmt: skip
    try:
        yield it
    finally:
        it.close()


def kinds(said: list[Record]) -> list[tuple[str, int]]:
    return [(type(r).__name__, r.round) for r in said]


def test_a_new_run_begins_with_the_models_own_weights(tmp_path: Path) -> None:
    with keeping(tmp_path, []) as it:
        assert it.version == 0
        assert all(torch.equal(tensor, prepared().built.state[name]) for name, tensor in it.tensors.items())


def test_a_run_that_goes_on_begins_with_its_last_snapshot(tmp_path: Path) -> None:
    with keeping(tmp_path, []) as it:
        for version in (3, 7):
            it.save(version, {"w": torch.full((2,), float(version))}, {"w/outer": torch.ones(2)})
        assert len(list((tmp_path / SERVER / "checkpoints").iterdir())) == 1
    with keeping(tmp_path, [], resume=True) as again:
        assert (again.version, again.tensors["w"].tolist()) == (7, [7.0, 7.0])
        assert again.velocity["w/outer"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("change", "words"), [({"seed": 5}, "seed 0"), ({"batch_size": 6}, "batch_size 4")])
def test_a_snapshot_of_another_job_is_refused(tmp_path: Path, change: dict[str, int], words: str) -> None:
    with keeping(tmp_path, []) as it:
        it.save(3, {"w": torch.zeros(1)}, {})
    with pytest.raises(InputError, match=f"made with {words}"), keeping(tmp_path, [], resume=True, **change):
        pass


def test_at_the_end_the_last_weights_are_saved_judged_and_kept(tmp_path: Path) -> None:
    said: list[Record] = []
    with keeping(tmp_path, said) as it:
        server = Server(it, 0.0)
        it.serve(cast(Any, server), cast(Any, SimpleNamespace(save=lambda: None)))
        it.finish(6, 2)
        assert (server.saves, it.model_path.parent) == (1, tmp_path)
        assert all(not tensor.any() for tensor in load_file(it.model_path).values())
        assert it.evaluated is not None
        assert it.evaluated.loss == pytest.approx(0.6931, rel=1e-3)  # all logits are equal: ln 2
    assert kinds(said) == [("EvaluationRecord", 6), ("CheckpointRecord", 6)]
    best = checkpoint.best(tmp_path)
    assert best is not None
    assert best.round == 6


def test_what_is_due_is_done_in_the_background_and_not_again_at_the_end(tmp_path: Path) -> None:
    said: list[Record] = []
    with keeping(tmp_path, said, eval_every=2, checkpoint_every=2) as it:
        it.look(1, 0, 3)
        assert said == []
        it.look(2, 0, 3)
        it.finish(2, 0)
    assert sorted(kinds(said)) == [("CheckpointRecord", 2), ("EvaluationRecord", 2)]


def test_patience_is_over_after_so_many_evaluations_that_are_no_better(tmp_path: Path) -> None:
    with keeping(tmp_path, [], patience=1) as it:
        it._evaluate(1, 0, it.tensors)
        assert not it.patience_is_over
        it._evaluate(2, 0, it.tensors)
        assert it.patience_is_over


def test_a_full_disk_is_told_and_ends_nothing(tmp_path: Path) -> None:
    said: list[Record] = []
    (tmp_path / "checkpoints").write_text("in the way")
    with keeping(tmp_path, said) as it:
        it.finish(3, 1)
    (incident,) = [r for r in said if isinstance(r, IncidentRecord)][:1]
    assert (incident.kind, incident.action) == ("checkpoint", "training goes on")
    assert not [r for r in said if isinstance(r, CheckpointRecord)]
    assert [r for r in said if isinstance(r, EvaluationRecord)]


def test_without_data_for_evaluation_nothing_is_judged(tmp_path: Path) -> None:
    said: list[Record] = []
    it = ServerKeeping(
        prepare_job(small_job()), tmp_path, said.append, lambda error: None, lambda: 1.0, resume=False
    )  # fmt: skip
    it.finish(3, 1)
    it.close()
    assert kinds(said) == [("CheckpointRecord", 3)]
