"""Every stage gets its rows of what it uses, a little ahead of training."""

from __future__ import annotations

import pytest
import torch

from potluck.coordinator.rounds.feeder import Feeder, send_feeds
from potluck.coordinator.samples.loading import Batch, training_loader, training_order
from potluck.errors import PotluckError
from potluck.program.layout import PlanLayout
from potluck.tensors.parcels import unpack
from potluck.types import Plan
from potluck.wire.link import Tag
from tests.unit.coordinator.small_job import plan_of, prepared, small_job
from tests.unit.memory_link import MemoryLink, memory_links

PATIENT_S = 20.0
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
BATCH = Batch((0, 1, 2, 3), {"input": torch.arange(12.0).reshape(4, 3), "label": torch.arange(4) % 2}, WEIGHTS)


def layout_of(plan: Plan) -> PlanLayout:
    return PlanLayout(prepared().built.programs, plan)


def got(link: MemoryLink, tag: Tag) -> list[list[float]]:
    return [t.tolist() for t in unpack(link.receive("coordinator", tag, 0.0), torch.device("cpu")) if t is not None]


def test_each_device_gets_its_rows_and_the_last_stage_labels_and_weights() -> None:
    plan = plan_of(("d0", "d1"), ("d2",))
    here, first, second, last = memory_links(["coordinator", "d0", "d1", "d2"])
    send_feeds(here, layout_of(plan), "train", 7, BATCH, (2, 2), 1.0)
    rows = BATCH.feeds["input"].tolist()
    assert got(first, Tag("feed-train", 7, 1, 0, 0)) == [[rows[2]]]
    assert got(second, Tag("feed-train", 7, 0, 0, 1)) == [[rows[1]]]
    assert got(last, Tag("feed-train", 7, 0, 1, 0)) == [[0, 1], [1.0, 2.0]]
    assert got(last, Tag("feed-train", 7, 1, 1, 0)) == [[0, 1], [3.0, 4.0]]
    assert sorted(d for d, _, _ in here.sent) == ["d0", "d0", "d1", "d1", "d2", "d2"]


def test_an_evaluation_sends_neither_labels_nor_weights() -> None:
    here, _, last = memory_links(["coordinator", "d0", "d1"])
    send_feeds(here, layout_of(plan_of(("d0",), ("d1",))), "eval", 0, BATCH, (2, 2), 1.0)
    assert {d for d, _, _ in here.sent} == {"d0"}
    assert not last.arrived("coordinator", Tag("feed-eval", 0, 0, 1, 0))


def test_rounds_come_in_order_and_no_more_are_on_their_way_than_there_is_room_for() -> None:
    job, plan = small_job(), plan_of(("d0",))
    here, _ = memory_links(["coordinator", "d0"])
    with training_loader(job) as loader:
        feeder = Feeder(loader, layout_of(plan), here, 1, 1, PATIENT_S)
        first = feeder.next(PATIENT_S)
        assert {tag.round for _, tag, _ in here.sent} == {1}
        feeder.done()
        second = feeder.next(PATIENT_S)
        feeder.close()
    order = training_order(job)
    assert [(fed.round, fed.ids) for fed in (first, second)] == [(r, order.round(r).ids) for r in (1, 2)]
    assert (first.sizes, first.total_weight) == ((2, 2), 4.0)


def test_what_goes_wrong_with_the_data_reaches_who_waits() -> None:
    class Broken:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> object:
            raise OSError("no such file")

    here, _ = memory_links(["coordinator", "d0"])
    job = small_job()
    object.__setattr__(job, "data", Broken())
    with training_loader(job) as loader:
        feeder = Feeder(loader, layout_of(plan_of(("d0",))), here, 0, 2, PATIENT_S)
        with pytest.raises(PotluckError, match="no such file"):
            feeder.next(PATIENT_S)
        feeder.close()


def test_samples_that_are_late_are_said_to_be() -> None:
    here, _ = memory_links(["coordinator", "d0"])
    with training_loader(small_job()) as loader:
        feeder = Feeder(loader, layout_of(plan_of(("d0",))), here, 0, 0, PATIENT_S)  # there is no room for any
        with pytest.raises(PotluckError, match="is the data slow"):
            feeder.next(0.1)
        feeder.close()
