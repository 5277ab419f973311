"""Constants that travelled with a program, as tensors."""

from __future__ import annotations

import torch

from potluck.compute.our_operators import torch_constant
from potluck.program.program import Program, shape_of, unpack_bytes


def constant_tensor(program: Program, number: int, data: str) -> torch.Tensor:
    tensor = program.values[number]
    flat = torch.frombuffer(bytearray(unpack_bytes(data)) or bytearray(8), dtype=torch_constant("dtype", tensor.dtype))
    shape = shape_of(tensor, 1)
    return flat[: torch.Size(shape).numel()].reshape(shape)
