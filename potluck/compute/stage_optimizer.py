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
from potluck.job.optimizer_state import LAST_GRADIENT, counter_names, slot_names
from potluck.job.optimizers import Muon, Optimizer, base_rate, rule_for
from potluck.job.parameter_groups import group_index

_NOT_OF_TORCH = ("groups", "match", "rest", "discounted", "feedback")


class StageOptimizer:
    """Updates the given parameters in place from their `.grad`."""

    def __init__(self, spec: Optimizer, parameters: Mapping[str, torch.Tensor]) -> None:
        self.spec = spec
        self.parameters = dict(parameters)
        self._rule_of = {name: rule_for(spec, name) for name in self.parameters}
        self._group_of = {name: group_index(rule, name) for name, rule in self._rule_of.items()}
        self._optimizers = self._build()
        self._last: dict[str, torch.Tensor] = {}  # gradients of the step before, where there is feedback

    def step(self, lr_scale: float = 1.0) -> None:
        """Apply one update with every group's base learning rate multiplied by `lr_scale`."""
        self._feed_back()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * lr_scale
            # The plain method: its decorators import torch's compiler, only to keep it away from the optimizer.
            step = inspect.unwrap(type(optimizer).step)
            with torch.no_grad():
                step(optimizer)

    def _feed_back(self) -> None:
        """Corrects gradients by what they show to have been wrong with those of the step before."""
        for name, parameter in self.parameters.items():
            feedback, gradient = self._rule_of[name].feedback, parameter.grad
            if not feedback or gradient is None:
                continue
            if name not in self._last:
                self._last[name] = gradient.clone()
                continue
            parameter.grad = gradient + feedback * (gradient - self._last[name])
            self._last[name].copy_(gradient)

    def onto(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Goes on with other tensors of the same names, with all it keeps of them."""
        if all(parameters[n] is p for n, p in self.parameters.items()):
            return
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["params"] = [parameters[names[id(parameter)]] for parameter in group["params"]]
            kept = optimizer.state
            moved = [(parameters[names[id(parameter)]], kept.pop(parameter)) for parameter in list(kept)]
            kept.update(moved)
        self.parameters = dict(parameters)

    def state(self) -> dict[str, torch.Tensor]:
        """The live state, "<parameter>/<slot>" → tensor. The next step changes it: copy what is to be kept."""
        kept = {
            f"{name}/{slot}": value
            for name, parameter in self.parameters.items()
            for optimizer in self._optimizers
            for slot, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }
        return kept | {f"{name}/{LAST_GRADIENT}": gradient for name, gradient in self._last.items()}

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
        self._optimizers = self._build()
        steps = {id(p): o for o in self._optimizers for group in o.param_groups for p in group["params"]}
        self._last.clear()
        for name, slots in found.items():
            parameter, counters = self.parameters[name], counter_names(self._rule_of[name])
            copies = {
                slot: value.detach().to("cpu" if slot in counters else parameter.device, copy=True)
                for slot, value in slots.items()
            }
            if LAST_GRADIENT in copies:
                self._last[name] = copies.pop(LAST_GRADIENT)
            steps[id(parameter)].state[parameter] = copies

    def _build(self) -> list[torch.optim.Optimizer]:
        """Fresh torch optimizers, each with the parameters that go by the same rule."""
        _leave_the_compiler_out()
        shares: dict[int, tuple[Optimizer, dict[int | None, list[torch.Tensor]]]] = {}
        for name, parameter in self.parameters.items():
            rule = self._rule_of[name]
            _, by_group = shares.setdefault(id(rule), (rule, {}))
            by_group.setdefault(self._group_of[name], []).append(parameter)
        return [_torch_optimizer(rule, by_group) for rule, by_group in shares.values()]

    def _check_slots(self, name: str, slots: Mapping[str, torch.Tensor]) -> None:
        rule, index = self._rule_of[name], self._group_of[name]
        shaped = slot_names(rule, {} if index is None else rule.groups[index].overrides)
        expected = {*shaped, *counter_names(rule)}
        if set(slots) != expected:
            raise InputError(
                f"optimizer state of {name!r} has {', '.join(sorted(slots)) or 'nothing'} "
                f"but {type(rule).__name__} keeps {', '.join(sorted(expected)) or 'nothing'}; "
                "load the state of the same optimizer"
            )
        shape = self.parameters[name].shape
        for slot, value in slots.items():
            if value.shape != (shape if slot in shaped else torch.Size([])):
                raise InputError(
                    f"optimizer state '{name}/{slot}' has shape {tuple(value.shape)} but the parameter {tuple(shape)}; "
                    "load the state of the same model"
                )


def _torch_optimizer(rule: Optimizer, by_group: Mapping[int | None, list[torch.Tensor]]) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = []
    for index, members in by_group.items():
        overrides = {} if index is None else rule.groups[index].overrides
        groups.append({"params": members, **overrides, "base_lr": base_rate(rule, overrides)})
    numbers = {k: v for k, v in msgspec.structs.asdict(rule).items() if k not in _NOT_OF_TORCH}
    maker: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, type(rule).__name__)
    one_by_one = {} if isinstance(rule, Muon) else {"foreach": False}  # Muon knows no other way
    return maker(groups, **one_by_one, **numbers)


def _leave_the_compiler_out() -> None:
    """Keeps torch from importing its compiler, 1.5 CPU-seconds, only to exempt optimizers from it.

    The exemption is looked up in an attribute of the function; where nothing is compiled, it is its own exemption.
    """
    function = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is not None and "torch._dynamo" not in sys.modules:
        function.__dynamo_disable = function
