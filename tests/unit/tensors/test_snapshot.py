"""A snapshot is a copy that proves itself by its digest."""

import pytest
import torch
from torch import nn

from potluck.errors import InputError
from potluck.tensors.snapshot import decode, encode, read_weights, separate, take, tensor_digest

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(3), "h": torch.ones(2, dtype=torch.bfloat16)}
STATE = {"a/exp_avg": torch.zeros(3, 2), "a/step": torch.tensor(4.0)}


def same(left, right):
    return left.keys() == right.keys() and all(
        torch.equal(left[n], right[n]) and left[n].dtype == right[n].dtype for n in left
    )


def test_a_snapshot_does_not_change_with_its_originals():
    live = torch.ones(3)
    snapshot = take(2, {"w": live}, {"w/momentum_buffer": live})
    live.add_(1)
    assert snapshot.weights["w"].tolist() == snapshot.optimizer["w/momentum_buffer"].tolist() == [1, 1, 1]
    assert snapshot.bytes == 24


def test_a_snapshot_travels_and_comes_back_the_same():
    snapshot = take(7, WEIGHTS, STATE)
    back = decode(encode(snapshot), round=7, digest=snapshot.digest)
    assert same(back.weights, WEIGHTS)
    assert same(back.optimizer, STATE)
    assert back.digest == snapshot.digest


def test_another_snapshot_or_a_damaged_one_is_refused():
    snapshot = take(7, WEIGHTS, STATE)
    data = bytearray(encode(snapshot))
    with pytest.raises(InputError, match="digest differs"):
        decode(bytes(data), round=8, digest=snapshot.digest)
    data[-1] ^= 1
    with pytest.raises(InputError, match="digest differs"):
        decode(bytes(data), round=7, digest=snapshot.digest)
    with pytest.raises(InputError, match="safetensors"):
        decode(b"\xff" * 40, round=7, digest=snapshot.digest)


def test_the_digest_covers_the_optimizer_and_the_round():
    momentum = {**STATE, "a/step": torch.tensor(5.0)}
    assert len({take(7, WEIGHTS, STATE).digest, take(7, WEIGHTS, momentum).digest, take(8, WEIGHTS, STATE).digest}) == 3


def test_the_digest_sees_names_types_shapes_and_bits():
    base = {"a": torch.zeros(4)}
    others = [
        {"b": torch.zeros(4)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": torch.zeros(2, 2)},
        {"a": -torch.zeros(4)},
        {},
    ]
    assert len({tensor_digest(t) for t in [base, *others]}) == 6
    pair = {"x": torch.zeros(1), "y": torch.ones(1)}
    assert tensor_digest(pair) == tensor_digest(dict(reversed(pair.items())))


def test_shared_tensors_are_separated():
    tied = nn.Parameter(torch.ones(2, 3))
    result = separate({"embed": tied, "head": tied, "view": tied.detach()[0], "flipped": tied.detach().T})
    assert len({t.untyped_storage().data_ptr() for t in result.values()}) == 4
    assert all(t.is_contiguous() for t in result.values())
    assert torch.equal(result["head"], tied)


def test_a_file_of_weights_that_is_none_is_named(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match=r"w\.safetensors: cannot be read"):
        read_weights(path)
    path.write_bytes(b"not at all")
    with pytest.raises(InputError, match=r"w\.safetensors: not a valid"):
        read_weights(path)
