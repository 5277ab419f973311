"""Tensors travel as they are; a damaged header is the link's fault and said as such."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from potluck.errors import LinkError
from potluck.tensors.parcels import pack, unpack

CPU = torch.device("cpu")


def arrived(tensors: list[torch.Tensor | None]) -> list[memoryview]:
    return [memoryview(bytearray(part)) for part in pack(tensors)]


def damaged(*head: Any, data: bytes = b"") -> list[memoryview]:
    return [memoryview(msgspec.msgpack.encode([head])), memoryview(bytearray(data))]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.zeros(0, 3),
        torch.tensor(True),
        torch.arange(5, dtype=torch.bfloat16),
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.rand(2, 4, 4, 1).permute(0, 3, 1, 2),  # its one channel last
        torch.rand(2, 1, 4, 4),
        torch.rand(1, 3, 4, 1),
        torch.rand(2, 3, 1, 1).to(memory_format=torch.channels_last),
    ],
)
def test_a_tensor_arrives_with_its_values_and_its_memory_order(tensor: torch.Tensor) -> None:
    found, nothing = unpack(arrived([tensor, None]), CPU)
    assert nothing is None
    assert found is not None
    assert torch.equal(found, tensor)
    assert found.dtype == tensor.dtype
    assert found.stride() == tensor.stride() or not tensor.numel()


WRONG = {
    "negative": damaged("float32", [-2, -2], [0, 1], data=bytes(16)),
    "negative and empty": damaged("float32", [0, -5], [0, 1]),
    "unknown element type": damaged("float33", [1], [0], data=bytes(4)),
    "something else of torch": damaged("nn", [1], [0], data=bytes(4)),
    "an element type without buffers": damaged("quint8", [1], [0], data=bytes(1)),
    "too few bytes": damaged("float32", [2], [0], data=bytes(4)),
    "huge and empty": damaged("float32", [2**63 - 1, 2**63 - 1, 0], [0, 1, 2]),
    "axes that are none": damaged("float32", [1], [1], data=bytes(4)),
    "more axes than tensors have": damaged("float32", [1] * 10_000, list(range(10_000)), data=bytes(4)),
    "no header": [memoryview(b"\xff")],
    "nothing": [],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_header_is_an_error_of_the_link(name: str) -> None:
    with pytest.raises(LinkError, match="the link is broken") as caught:
        unpack(WRONG[name], CPU)
    assert len(str(caught.value)) < 500
