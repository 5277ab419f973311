"""An evaluation on devices gives the loss and metrics of the whole set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn import functional

from potluck.coordinator.rounds.evaluation import Evaluator
from potluck.model.outputs import take_apart
from potluck.program.layout import PlanLayout
from potluck.tensors.parcels import pack, unpack
from potluck.types import Plan
from potluck.wire.link import Tag
from potluck.wire.messages import Evaluate
from tests.unit.coordinator.small_job import plan_of, prepared, small_job
from tests.unit.memory_link import memory_links

FACTORS = torch.tensor([[1.0, -1.0], [0.5, 2.0], [-3.0, 1.0]])  # what the model of these devices multiplies by


class Devices:
    """They answer with outputs of their rows, which they look up in what they were fed."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.orders = plan, list[Evaluate]()
        self.link, *self.ends = memory_links(["coordinator", *plan.devices])
        self.under_way = self.most = 0
        roster = SimpleNamespace(broadcast=self._told)
        job = small_job(eval_data=small_job().data, metrics={"worst": lambda outputs, labels: outputs.min()})
        form, _ = take_apart(torch.zeros(2, 2))
        run = SimpleNamespace(job=job, outputs=form, roster=roster, link=self.link, timeout_s=1.0)
        layout = PlanLayout(prepared().built.programs, plan)
        self.evaluator = Evaluator(cast(Any, SimpleNamespace(run=run, plan=plan, layout=layout)), self._outputs)

    def _told(self, order: Evaluate, devices: tuple[str, ...]) -> None:
        assert devices == self.plan.devices
        self.orders.append(order)
        self.under_way += 1
        self.most = max(self.most, self.under_way)

    def _outputs(self, device: str, tag: Tag) -> list[memoryview]:
        """The rows were sent to who shares the first stage."""
        assert tag.kind == "outputs"
        end = self.ends[self.plan.devices.index(device)]
        feed = end.receive("coordinator", Tag("feed-eval", tag.round, tag.micro_batch, 0, tag.part), 0.0)
        (rows,) = unpack(feed, torch.device("cpu"))
        assert rows is not None
        if tag.micro_batch == len(self.orders[tag.round].sizes) - 1:
            self.under_way -= 1
        return [memoryview(bytearray(part)) for part in pack([rows @ FACTORS])]


@pytest.mark.parametrize("plan", [plan_of(("d0",)), plan_of(("d0", "d1"))])
def test_what_devices_answer_is_put_together_in_order(plan: Plan) -> None:
    devices = Devices(plan)
    inputs, labels = cast(Any, small_job().data)
    for again in range(2):
        loss, metrics, samples = devices.evaluator.run()
        assert loss == pytest.approx(float(functional.cross_entropy(inputs @ FACTORS, labels)), rel=1e-5)
        assert metrics["worst"] == pytest.approx(float((inputs @ FACTORS).min()), rel=1e-5)
        assert samples == 12
        assert [order.number for order in devices.orders] == list(range(3 * (again + 1)))
    assert [order.sizes for order in devices.orders[:3]] == [(2, 2)] * 3
    assert devices.most == 2  # batches under way at a time
    devices.evaluator.close()
