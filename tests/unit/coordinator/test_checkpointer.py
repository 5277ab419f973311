"""Checkpoints are put together from what devices report, while training goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from potluck.compute.runner import StageState
from potluck.coordinator.rounds.checkpointer import GO_ON, Checkpointer
from potluck.coordinator.samples.loading import training_order
from potluck.errors import DeviceError, LinkTimeout
from potluck.program.layout import PlanLayout
from potluck.tensors import checkpoint
from potluck.tensors.model_state import ModelState
from potluck.tensors.state_transfer import send_state
from tests.unit.coordinator.small_job import plan_of, prepared, small_job
from tests.unit.memory_link import memory_links

PLAN = plan_of(("d0",), ("d1",))


class Training:
    """Two devices that report states in which every tensor holds one number."""

    def __init__(self, path: Path) -> None:
        self.link, *self.ends = memory_links(["coordinator", "d0", "d1"])
        self.layout = PlanLayout(prepared().built.programs, PLAN)
        self.model = ModelState(dict(prepared().built.state), {}, {})
        self.job, self.roster = small_job(), SimpleNamespace(what_now="")
        self.records: list[Any] = []
        self.incidents: list[Any] = []
        run = SimpleNamespace(
            job=self.job, link=self.link, model=self.model, roster=self.roster, digest="p", data_digest="d",
            folder=SimpleNamespace(path=path), timeout_s=1.0,
        )  # fmt: skip
        self.announcer = SimpleNamespace(
            say=self.records.append, at_s=lambda: 0.0, incident=lambda *words: self.incidents.append(words)
        )
        term = SimpleNamespace(run=run, layout=self.layout, plan=PLAN)
        self.order = training_order(self.job)
        self.saver = Checkpointer(cast(Any, term), cast(Any, self.announcer))

    def reported(self, round: int, value: float, wrong: str = "") -> None:
        for device, end in zip(PLAN.devices, self.ends, strict=True):
            parameters, buffers = self.layout.reported_names(device)
            state = self.model.tensors
            full = {n: torch.full_like(state[n], value) for n in parameters}
            if device == wrong:
                full = {n: t.double() for n, t in full.items()}
            send_state(end, "coordinator", round, StageState(full, {n: state[n] for n in buffers}), 1.0)


def test_what_all_devices_report_is_written_with_where_training_goes_on(tmp_path: Path) -> None:
    it = Training(tmp_path)
    it.reported(2, 5.0)
    it.saver.save(2, it.order)
    it.saver.finish()
    manifest, weights, _ = checkpoint.load(tmp_path / "checkpoints" / "round-000002")
    assert all(bool((tensor == 5.0).all()) for tensor in weights.values())
    assert set(weights) == set(it.model.weights())
    where = manifest.position
    assert (where.round, where.epoch, where.index_in_epoch, where.program, where.data) == (2, 0, 2, "p", "d")
    assert (it.model.round, it.roster.what_now) == (2, GO_ON)
    (record,) = it.records
    assert (record.round, record.bytes) == (2, sum(t.nbytes for t in weights.values()))


def test_after_the_last_round_comes_the_next_epoch(tmp_path: Path) -> None:
    it = Training(tmp_path)
    it.saver.save_again(3, it.order)
    it.saver.finish()
    where = checkpoint.load(tmp_path / "checkpoints" / "round-000003")[0].position
    assert (where.round, where.epoch, where.index_in_epoch) == (3, 1, 0)


def test_a_full_disk_is_told_and_training_goes_on(tmp_path: Path) -> None:
    it = Training(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    it.reported(1, 1.0)
    it.saver.save(1, it.order)
    it.saver.mark_best(checkpoint.Best(round=1, metric="loss", value=0.0))
    it.saver.finish()
    assert [(kind, round, action) for kind, round, _, action in it.incidents] == [
        ("checkpoint", 1, "training goes on without it")
    ] * 2
    assert (it.records, it.roster.what_now) == ([], "")


def test_a_device_that_reports_nothing_is_noticed(tmp_path: Path) -> None:
    it = Training(tmp_path)
    it.saver.save(1, it.order)
    with pytest.raises(LinkTimeout):
        it.saver.finish()
    with pytest.raises(LinkTimeout):
        it.saver.check()


def test_a_state_of_another_kind_does_not_get_into_the_model(tmp_path: Path) -> None:
    it = Training(tmp_path)
    it.reported(1, 5.0, wrong="d1")
    it.saver.save(1, it.order)
    with pytest.raises(DeviceError, match="d1"):
        it.saver.finish()
    assert it.model.round == 0
    assert not any(bool((t == 5.0).all()) for t in it.model.tensors.values())


def test_what_comes_after_a_term_was_given_up_does_not_change_the_model(tmp_path: Path) -> None:
    it = Training(tmp_path)
    it.reported(1, 5.0)
    check, giving_up = it.model.check, threading.Thread(target=it.saver.abandon)

    def given_up_meanwhile(*words: Any) -> None:
        if not giving_up.ident:
            giving_up.start()
        while not it.saver._over:
            giving_up.join(0.01)
        check(*words)

    setattr(it.model, "check", given_up_meanwhile)  # noqa: B010
    it.saver.save(1, it.order)
    it.saver.finish()
    giving_up.join(20.0)
    assert (it.model.round, it.records) == (0, [])
    assert not checkpoint.exists(tmp_path)


def test_the_final_model_has_the_weights_as_they_are(tmp_path: Path) -> None:
    it = Training(tmp_path)
    written = load_file(it.saver.write_final())
    it.saver.finish()
    assert written.keys() == it.model.weights().keys()
    assert all(torch.equal(tensor, it.model.tensors[name]) for name, tensor in written.items())
