"""Models without weights: built on the meta device because they are bigger than the coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextlib.contextmanager
def empty_weights() -> Iterator[None]:
    """Within, modules are made with parameters on the meta device, which take no memory, and with real buffers.

    `with torch.device("meta")` would also lose the buffers that no checkpoint holds, such as rotary tables.
    """
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        register(module, name, param)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def is_empty(model: nn.Module) -> bool:
    """Whether the model has parameters without values."""
    return any(p.is_meta for p in model.parameters())


@contextlib.contextmanager
def weights_that_trace(form: nn.Module) -> Iterator[None]:
    """Within, tensors on the meta device pose as tensors of this device, so that they go with inputs and buffers."""
    if not is_empty(form):
        yield
        return
    pose = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    posing: dict[torch.Tensor, torch.Tensor] = {}
    swapped: list[tuple[dict[str, torch.Tensor], str, torch.Tensor]] = []
    with pose:
        for module in form.modules():
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    if tensor is None or not tensor.is_meta:
                        continue
                    if tensor not in posing:  # a tied weight stays one tensor
                        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                        posing[tensor] = (
                            nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
                        )
                    swapped.append((held, name, tensor))  # type: ignore[arg-type]
    for held_by, name, tensor in swapped:
        held_by[name] = posing[tensor]
    try:
        yield
    finally:
        for held_by, name, tensor in swapped:
            held_by[name] = tensor
