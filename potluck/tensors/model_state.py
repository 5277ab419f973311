"""The whole model's tensors on the coordinator: at the start, and in every checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from potluck.compute.runner import StageState
from potluck.errors import DeviceError, InputError
from potluck.program.layout import PlanLayout
from potluck.program.program import ProgramPair
from potluck.tensors.snapshot import read_weights


@dataclass
class ModelState:
    """Weights and buffers by name (tied ones once), and optimizer state by "name/slot"."""

    tensors: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    aliases: Mapping[str, str]
    round: int = 0  # of so many committed rounds
    file: Path | None = None  # where the values of tensors without values (on the meta device) are

    def some(self, layout: PlanLayout, names: Iterable[str]) -> StageState:
        """These parameters and buffers, and what the optimizer keeps of them."""
        wanted = set(names)
        every = [layout.state_names(stage) for stage in range(len(layout.plan.stages))]
        parameters = {n for found, _ in every for n in found} & wanted
        return StageState(
            self._values(sorted(parameters)),
            self._values(sorted(wanted - parameters)),
            {k: t for k, t in self.optimizer.items() if k.rpartition("/")[0] in parameters},
        )

    def _values(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tensors with their values; those of a model bigger than this machine are read here, for one stage."""
        found = {n: self.tensors[n] for n in names}
        missing = [n for n, t in found.items() if t.is_meta]
        if missing and self.file is None:
            raise InputError(f"the model has no weights ({missing[0]} is on the meta device); give them with Job.init")
        if missing and self.file is not None:
            with safe_open(self.file, "pt") as opened:
                stored = set(opened.keys())
                second = {name: alias for alias, name in self.aliases.items()}
                found |= {n: opened.get_tensor(n if n in stored else second[n]) for n in missing}
        return found

    def take(self, round: int, reports: Iterable[StageState]) -> None:
        """Becomes the state of so many rounds, put together from what devices reported and `check` passed."""
        for part in reports:
            self.tensors.update(part.parameters)
            self.tensors.update(part.buffers)
            self.optimizer.update(part.optimizer)
        self.round = round

    def check(self, device: str, part: StageState, parameters: Sequence[str], buffers: Sequence[str]) -> None:
        """Raises unless what a device reported is the state of these parameters and buffers."""
        for found, expected in ((part.parameters, parameters), (part.buffers, buffers)):
            for name in sorted(set(found) ^ set(expected)):
                raise _wrong(device, f"{'without' if name in expected else 'with'} {name!r}")
            for name, tensor in found.items():
                _check_like(device, name, tensor, self.tensors[name])
        for key, tensor in part.optimizer.items():
            name = key.rpartition("/")[0]
            if name not in part.parameters:
                raise _wrong(device, f"with the optimizer state {key!r}")
            if tensor.dim():  # a slot is like its parameter, or one number
                _check_like(device, key, tensor, self.tensors[name])

    def weights(self) -> dict[str, torch.Tensor]:
        """Everything the unsplit module's state_dict has, tied names included."""
        return {**self.tensors, **{alias: self.tensors[name] for alias, name in self.aliases.items()}}

    def load_file(self, path: Path) -> None:
        """Starts from a safetensors file, read at once, or piece by piece if the model itself is not in memory."""
        if not any(t.is_meta for t in self.tensors.values()):
            self.load_weights(read_weights(path), str(path))
            return
        try:
            with safe_open(path, "pt") as opened:
                shapes = {n: torch.empty(opened.get_slice(n).get_shape(), device="meta") for n in opened.keys()}  # noqa: SIM118 - not a dict
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{path}: not a readable safetensors file ({error}); give one saved from this model"
            ) from None
        self._check(shapes, str(path))
        self.file = path

    def load_weights(self, given: Mapping[str, torch.Tensor], where: str) -> None:
        """Starts from these weights; an InputError names the first whose name or shape is not the model's."""
        self._check(given, where)
        for name, tensor in given.items():
            target = self.aliases.get(name, name)
            # Into the memory order the model has (channels_last, say): a file has lost it, and kernels follow it.
            self.tensors[target] = torch.empty_like(self.tensors[target]).copy_(tensor)

    def _check(self, given: Mapping[str, torch.Tensor], where: str) -> None:
        wanted = {*self.tensors, *self.aliases}
        present = {self.aliases.get(n, n) for n in given}
        missing = sorted(set(self.tensors) - present)
        extra = sorted(set(given) - wanted)
        if missing or extra:
            what = f"has no {missing[0]}" if missing else f"has {extra[0]}, which the model does not"
            raise InputError(f"{where}: {what}; give a file saved from this model")
        for name, tensor in given.items():
            shape = self.tensors[self.aliases.get(name, name)].shape
            if tensor.shape != shape:
                shapes = f"{tuple(tensor.shape)}, the model's is {tuple(shape)}"
                raise InputError(f"{where}: {name} has shape {shapes}; give a file saved from this model")


def _check_like(device: str, name: str, tensor: torch.Tensor, like: torch.Tensor) -> None:
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        here, there = (f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (like, tensor))
        raise _wrong(device, f"where {name!r} is {there} instead of {here}")


def _wrong(device: str, what: str) -> DeviceError:
    return DeviceError(f"device {device} reported a state {what}; restart it and go on with --resume")


def buffer_names(programs: ProgramPair) -> frozenset[str]:
    """What the programs read and write, but no optimizer changes."""
    return frozenset(s.name for p in (programs.train, programs.eval) for s in p.sources if s.kind == "buffer")


def trainable_names(programs: ProgramPair) -> list[str]:
    return [s.name for s in programs.train.sources if s.kind == "parameter" and s.trainable]
