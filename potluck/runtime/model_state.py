"""The whole model's tensors on the coordinator: at the start, and in every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from potluck.errors import InputError
from potluck.model.program import ProgramPair
from potluck.runtime.layout import PlanLayout
from potluck.runtime.stage import StageState


@dataclass
class ModelState:
    """Weights and buffers by name (tied ones once), and optimizer state by "name/slot"."""

    tensors: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    aliases: Mapping[str, str]

    def of_stage(self, layout: PlanLayout, stage: int) -> StageState:
        """What a device of the stage holds."""
        parameters, buffers = layout.state_names(stage)
        return StageState(
            {n: self.tensors[n] for n in parameters},
            {n: self.tensors[n] for n in buffers},
            {k: t for k, t in self.optimizer.items() if k.rpartition("/")[0] in set(parameters)},
        )

    def merge(self, part: StageState) -> None:
        """Takes over what a device reported."""
        self.tensors.update(part.parameters)
        self.tensors.update(part.buffers)
        self.optimizer.update(part.optimizer)

    def weights(self) -> dict[str, torch.Tensor]:
        """Everything the unsplit module's state_dict has, tied names included."""
        return {**self.tensors, **{alias: self.tensors[name] for alias, name in self.aliases.items()}}

    def load_weights(self, given: Mapping[str, torch.Tensor], where: str) -> None:
        """Starts from these weights; an InputError names the first whose name or shape is not the model's."""
        wanted = {*self.tensors, *self.aliases}
        missing = sorted(set(self.tensors) - set(given) - {a for a in self.aliases if a in given})
        extra = sorted(set(given) - wanted)
        if missing or extra:
            what = f"has no {missing[0]}" if missing else f"has {extra[0]}, which the model does not"
            raise InputError(f"{where}: {what}; give a file saved from this model")
        for name, tensor in given.items():
            target = self.aliases.get(name, name)
            if tensor.shape != self.tensors[target].shape:
                shapes = f"{tuple(tensor.shape)}, the model's is {tuple(self.tensors[target].shape)}"
                raise InputError(f"{where}: {name} has shape {shapes}; give a file saved from this model")
            self.tensors[target] = tensor.to(self.tensors[target].dtype)


def trainable_names(programs: ProgramPair) -> list[str]:
    """Trainable parameters in program order."""
    return [s.name for s in programs.train.sources if s.kind == "parameter" and s.trainable]
