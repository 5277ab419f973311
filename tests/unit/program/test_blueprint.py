"""Which tensors the stages of a plan have, and how big they are."""

from __future__ import annotations

import torch

from potluck.program.blueprint import ModelBlueprint, tensor_sizes
from tests.unit.builders import chain
from tests.unit.model.small_models import build_small, stepped


def test_every_tensor_is_in_one_stage_with_its_size() -> None:
    model = stepped(lambda model, i, x: model.norm(x) if i == 1 else x, norm=torch.nn.BatchNorm1d(6))
    built = build_small(model)
    wanted = {name: tensor.nbytes for name, tensor in model.state_dict().items()}
    assert tensor_sizes(built.programs) == wanted
    blueprint = ModelBlueprint(built.programs)
    assert blueprint.sizes == wanted
    plan = chain(built.programs.train.block_count)
    stages = [blueprint.names(plan, stage) for stage in range(len(plan.stages))]
    assert sorted(name for names in stages for name in names) == sorted(wanted)
    [norms] = [names for names in stages if "norm.running_mean" in names]
    assert {"norm.weight", "norm.bias", "norm.num_batches_tracked"} <= norms
    assert blueprint.layout(plan) is blueprint.layout(plan)
