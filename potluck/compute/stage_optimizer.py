"""The optimizer of one stage: torch.optim over the stage's own parameters, with state kept by parameter name.

Every parameter is updated by itself (no foreach, no fused kernels), so the bits of an update do not depend on which
parameters share a stage. Frozen parameters are simply not given.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from potluck.errors import InputError
from potluck.job.optimizers import Optimizer, counter_names, slot_names
from potluck.job.parameter_groups import group_index


class StageOptimizer:
    """Updates the given parameters in place from their `.grad`."""

    def __init__(self, spec: Optimizer, parameters: Mapping[str, torch.Tensor]) -> None:
        self.spec = spec
        self.parameters = dict(parameters)
        self._group_of = {name: group_index(spec, name) for name in self.parameters}
        self._optimizer = self._build()

    def step(self, lr_scale: float = 1.0) -> None:
        """Apply one update with every group's base learning rate multiplied by `lr_scale`."""
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = group["base_lr"] * lr_scale
        # The plain method: its decorators import torch's compiler, only to keep it away from the optimizer.
        step = inspect.unwrap(type(self._optimizer).step)
        with torch.no_grad():
            step(self._optimizer)

    def onto(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Goes on with other tensors of the same names, with all it keeps of them."""
        if self._optimizer is None or all(parameters[n] is p for n, p in self.parameters.items()):
            return
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for group in self._optimizer.param_groups:
            group["params"] = [parameters[names[id(parameter)]] for parameter in group["params"]]
        kept = self._optimizer.state
        moved = [(parameters[names[id(parameter)]], kept.pop(parameter)) for parameter in list(kept)]
        kept.update(moved)
        self.parameters = dict(parameters)

    def state(self) -> dict[str, torch.Tensor]:
        """The live state, "<parameter>/<slot>" → tensor. The next step changes it: copy what is to be kept."""
        if self._optimizer is None:
            return {}
        return {
            f"{name}/{slot}": value
            for name, parameter in self.parameters.items()
            for slot, value in self._optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the whole state by copies of the given tensors; the state must be of exactly these parameters."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for key, value in state.items():
            name, _, slot = key.rpartition("/")
            if name not in self.parameters:
                raise InputError(f"optimizer state {key!r}: no such parameter here; load the state of the same model")
            found.setdefault(name, {})[slot] = value
        for name, slots in found.items():
            self._check_slots(name, slots)
        self._optimizer = self._build()
        if self._optimizer is None:
            return
        for name, slots in found.items():
            parameter = self.parameters[name]
            self._optimizer.state[parameter] = {
                slot: value.detach().to("cpu" if slot in counter_names(self.spec) else parameter.device, copy=True)
                for slot, value in slots.items()
            }

    def _build(self) -> torch.optim.Optimizer | None:
        """A fresh torch optimizer; None without parameters, which torch refuses."""
        _leave_the_compiler_out()
        by_group: dict[int | None, list[torch.Tensor]] = {}
        for name, parameter in self.parameters.items():
            by_group.setdefault(self._group_of[name], []).append(parameter)
        if not by_group:
            return None
        groups: list[dict[str, Any]] = []
        for index, members in by_group.items():
            overrides = {} if index is None else self.spec.groups[index].overrides
            groups.append({"params": members, **overrides, "base_lr": overrides.get("lr", self.spec.lr)})
        numbers = {k: v for k, v in msgspec.structs.asdict(self.spec).items() if k != "groups"}
        maker: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, type(self.spec).__name__)
        return maker(groups, foreach=False, **numbers)

    def _check_slots(self, name: str, slots: Mapping[str, torch.Tensor]) -> None:
        index = self._group_of[name]
        shaped = slot_names(self.spec, {} if index is None else self.spec.groups[index].overrides)
        expected = {*shaped, *counter_names(self.spec)}
        if set(slots) != expected:
            raise InputError(
                f"optimizer state of {name!r} has {', '.join(sorted(slots)) or 'nothing'} "
                f"but {type(self.spec).__name__} keeps {', '.join(sorted(expected)) or 'nothing'}; "
                "load the state of the same optimizer"
            )
        shape = self.parameters[name].shape
        for slot, value in slots.items():
            if value.shape != (shape if slot in shaped else torch.Size([])):
                raise InputError(
                    f"optimizer state '{name}/{slot}' has shape {tuple(value.shape)} but the parameter {tuple(shape)}; "
                    "load the state of the same model"
                )


def _leave_the_compiler_out() -> None:
    """Keeps torch from importing its compiler, 1.5 CPU-seconds, only to exempt optimizers from it.

    The exemption is looked up in an attribute of the function; where nothing is compiled, it is its own exemption.
    """
    function = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is not None and "torch._dynamo" not in sys.modules:
        function.__dynamo_disable = function
