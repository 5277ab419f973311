"""Tensors travel by the codec of their edge; what is damaged on the way is the link's fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from potluck.compress.codec_registry import codec_named
from potluck.compress.raw import Raw
from potluck.errors import CodecError, LinkError
from potluck.tensors.coded import Like, pack_coded, unpack_coded
from potluck.tensors.parcels import pack
from tests.extending import half_precision

CPU = torch.device("cpu")
HALF = codec_named(half_precision.Half.name)
MIXED = [torch.rand(2, 3).t() / 3, None, torch.arange(4), torch.tensor([True]), torch.rand(1, dtype=torch.float64)]
LIKES = [Like((), torch.int8) if t is None else Like(tuple(t.shape), t.dtype) for t in MIXED]


class InParts(Raw):
    """Sends each row by itself, with how many there are."""

    name = "in parts"

    def bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        return super().bytes(shape, dtype) + 8

    def encode(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        return [torch.tensor(len(tensor)), *tensor]

    def decode(self, parts: Sequence[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.stack(list(parts[1 : 1 + int(parts[0])])).reshape(shape)


def sent(tensors: list[torch.Tensor | None], codec: object = HALF) -> list[memoryview]:
    return [memoryview(bytearray(part)) for part in pack_coded(tensors, codec)]  # type: ignore[arg-type]


def test_numbers_are_rounded_and_everything_else_arrives_as_it_was() -> None:
    found = unpack_coded(sent(MIXED), HALF, LIKES, CPU)
    for tensor, arrived in zip(MIXED, found, strict=True):
        if tensor is None or arrived is None:
            assert tensor is arrived is None
            continue
        expected = tensor.half().to(tensor.dtype) if tensor.is_floating_point() else tensor
        assert torch.equal(arrived, expected)
        assert arrived.dtype == tensor.dtype
        assert arrived.stride() == tensor.stride()


def test_a_codec_may_make_several_parts_of_a_tensor() -> None:
    found = unpack_coded(sent(MIXED, InParts()), InParts(), LIKES, CPU)
    for tensor, arrived in zip(MIXED, found, strict=True):
        assert (tensor is None and arrived is None) or torch.equal(tensor, arrived)  # type: ignore[arg-type]


def test_raw_messages_are_as_without_codecs() -> None:
    there = [torch.rand(3), None]
    assert [bytes(p) for p in pack_coded(there, Raw())] == [bytes(p) for p in pack(there)]


class Nothing(Raw):
    """Makes no part of a tensor."""

    name = "nothing"

    def encode(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        return []


def test_a_codec_that_sends_nothing_is_stopped_where_it_sends() -> None:
    with pytest.raises(CodecError, match="codec 'nothing' made 0 parts"):
        pack_coded([torch.rand(1)], Nothing())


class Faulty(Raw):
    """Does what a test wants."""

    name = "faulty"

    def __init__(
        self, encode: Callable[[torch.Tensor], object] = lambda tensor: [tensor],
        decode: Callable[[Sequence[torch.Tensor]], object] = lambda parts: parts[0], item_bytes: int = 4,
    ) -> None:  # fmt: skip
        self.encode, self.item_bytes = encode, item_bytes  # type: ignore[method-assign, assignment]
        self.decode = lambda parts, shape, dtype: decode(parts)  # type: ignore[method-assign, assignment, return-value]

    def bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        return self.item_bytes * math.prod(shape)


@pytest.mark.parametrize(
    ("codec", "why"),
    [
        (Faulty(encode=lambda tensor: 1 / 0), r"cannot encode a tensor \(ZeroDivisionError: .*\); repair it"),
        (Faulty(encode=lambda tensor: tensor), "made a Tensor of a tensor; let encode give a list of tensors"),
        (Faulty(encode=lambda tensor: [1]), "made a list with an int of a tensor; let encode give a list of tensors"),
        (Faulty(item_bytes=2), r"made 24 bytes of a \(2, 3\) float32 tensor, where its bytes says 12; correct .*"),
        (Faulty(decode=lambda parts: 1 / 0), r"cannot decode a message \(ZeroDivisionError: .*\); repair it, .*"),
        (Faulty(decode=lambda parts: None), "decoded a message to None; let decode give a tensor"),
        (Faulty(decode=lambda parts: parts[0][0]), r"decoded a message to \(3,\) torch.float32 instead of .*"),
        (Faulty(decode=lambda parts: parts[0].half()), r"decoded a message to \(2, 3\) torch.float16 instead of .*"),
    ],
)  # fmt: skip
def test_a_codec_that_fails_is_named(codec: Faulty, why: str) -> None:
    with pytest.raises(CodecError, match=f"^codec 'faulty' {why}$") as caught:
        unpack_coded(sent([torch.rand(2, 3)], codec), codec, [Like((2, 3), torch.float32)], CPU)
    assert "link" not in str(caught.value)


WHOLE = sent([torch.rand(2, 3)])
DAMAGED = {
    "nothing": ([], HALF),
    "too few tensors": ([memoryview(b""), *sent([])[1:]], HALF),
    "counts that are wrong": ([memoryview(b"\x02"), *WHOLE[1:]], HALF),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_message_is_an_error_of_the_link(name: str) -> None:
    message, codec = DAMAGED[name]
    with pytest.raises(LinkError, match="the link is broken"):
        unpack_coded(message, codec, [Like((2, 3), torch.float32)], CPU)
