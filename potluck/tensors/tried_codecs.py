"""A codec may be somebody else's code: it is tried on what the plan has it send, before anything is trained."""

from __future__ import annotations

import torch

from potluck.compress.codec import FLOATS, Codec
from potluck.compress.codec_registry import seconds_of
from potluck.errors import CodecError, InputError
from potluck.program.layout import PlanLayout
from potluck.tensors.coded import Like, pack_coded, unpack_coded
from potluck.types import RAW, DeviceProfile, DeviceSpec

_ROWS = 2  # of what crosses: little is enough to see whether a codec works
_ANY_DEVICE = DeviceProfile(device=DeviceSpec(name="any"), blocks=(), copy_bytes_s=1e9)


def try_codecs(layout: PlanLayout, device: torch.device) -> None:
    """InputError, with the codec's name and what to do, unless each codec of the plan does what it says."""
    rows, tried = min(_ROWS, layout.plan.micro_batch_size), set[tuple[str, Like]]()
    for codec, crossing in layout.coded():
        if codec.name != RAW and crossing.dtype in FLOATS:
            like = Like(tuple(crossing.shape_of(rows)), getattr(torch, crossing.dtype))
            if (codec.name, like) not in tried:
                tried.add((codec.name, like))
                try_codec(codec, like, device)


def try_codec(codec: Codec, like: Like, device: torch.device) -> None:
    """The same for one codec and a tensor like this."""
    seconds_of(codec, _ANY_DEVICE)
    tensor = torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        device, like.dtype
    )
    before = tensor.clone()
    try:
        message = [memoryview(part) for part in pack_coded([tensor], codec)]
        changed, again = not torch.equal(tensor, before), pack_coded([before.clone()], codec)
        (back,) = unpack_coded(message, codec, [like], device)
    except CodecError as error:
        raise InputError(str(error)) from error
    if changed:
        raise _wrong(codec, "encode changes the tensor that it is given; let it make others")
    if [bytes(part) for part in message] != [bytes(part) for part in again]:
        raise _wrong(
            codec, "encode makes other parts of the same tensor; let it remember nothing, and leave chance out"
        )
    if codec.exact and (back is None or not torch.equal(back, before)):
        raise _wrong(codec, "it is exact, it says, and gives other bits back; set exact to False, or repair it")


def _wrong(codec: Codec, why: str) -> InputError:
    return InputError(f"codec {codec.name!r}: {why}")
