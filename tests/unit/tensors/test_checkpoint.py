"""A checkpoint is whole or absent, and a damaged one is never loaded."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from potluck.errors import InputError, PotluckError
from potluck.tensors.checkpoint import Best, Position, best, best_path, exists, load, mark_best, newest, write


def position(round):
    return Position(round=round, epoch=0, index_in_epoch=round, seed=1, sample_count=100, batch_size=4, program="abc")


def put(folder, round, value=None, keep=3):
    number = float(round if value is None else value)
    return write(folder, position(round), {"w": torch.full((3,), number)}, {"w/step": torch.tensor(number)}, keep=keep)


def newest_of(folder, at_most=None):
    found = newest(folder, at_most=at_most)
    assert found is not None
    return found


def names(folder):
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


def test_what_is_written_is_loaded(tmp_path):
    path = put(tmp_path, 12)
    assert path == tmp_path / "checkpoints" / "round-000012"
    manifest, weights, optimizer = load(path)
    assert manifest.position == position(12)
    assert manifest.torch == torch.__version__
    assert weights["w"].tolist() == [12, 12, 12]
    assert optimizer["w/step"].item() == 12
    found = newest_of(tmp_path)
    assert (found.path, found.manifest, found.skipped) == (path, manifest, ())


def test_before_the_first_there_is_none(tmp_path):
    assert newest(tmp_path) is None
    assert not exists(tmp_path)
    assert best(tmp_path) is None
    assert best_path(tmp_path) is None


def test_a_model_with_tied_weights_and_buffers_loads_strictly(tmp_path):
    def make():
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False))
        model[2].weight = model[0].weight
        return model

    model = make()
    model(torch.randn(5, 3))
    _, weights, _ = load(write(tmp_path, position(1), model.state_dict(), {}))
    copy = make()
    copy.load_state_dict(weights, strict=True)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), copy.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty", "link"])
def test_a_damaged_newest_is_refused_and_the_one_before_used(tmp_path, name, damage):
    put(tmp_path, 1)
    file = put(tmp_path, 2) / name
    if damage == "flip":
        flip(file, at=-1 if name != "manifest.json" else 20)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-3])
    elif damage == "remove":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=name):
        load(file.parent)
    found = newest_of(tmp_path)
    assert found.manifest.position.round == 1
    assert len(found.skipped) == 1
    assert str(file) in found.skipped[0]


def test_any_flipped_bit_of_a_manifest_is_found(tmp_path):
    file = put(tmp_path, 2) / "manifest.json"
    whole = file.read_bytes()
    for at in range(len(whole)):
        flip(file, at)
        with pytest.raises(InputError, match="manifest"):
            load(file.parent)
        file.write_bytes(whole)
    load(file.parent)


def test_only_damaged_ones_are_an_error_not_a_fresh_start(tmp_path):
    flip(put(tmp_path, 1) / "weights.safetensors")
    with pytest.raises(InputError, match=r"no whole checkpoint.*weights\.safetensors"):
        newest(tmp_path)


def test_a_checkpoint_beyond_the_ledger_is_not_used(tmp_path):
    put(tmp_path, 1)
    put(tmp_path, 2)
    assert newest_of(tmp_path, at_most=1).manifest.position.round == 1
    assert newest(tmp_path, at_most=0) is None


def test_a_renamed_folder_is_not_taken_for_another_round(tmp_path):
    put(tmp_path, 1)
    put(tmp_path, 2).rename(tmp_path / "checkpoints" / "round-000009")
    found = newest_of(tmp_path)
    assert found.manifest.position.round == 1
    assert "says round 2" in found.skipped[0]


class PowerCutError(BaseException):
    """Not an Exception: nothing tidies up after it."""


@pytest.mark.parametrize("cut_at", range(2))
@pytest.mark.parametrize("again", [False, True])
def test_an_interrupted_write_leaves_the_one_before(tmp_path, monkeypatch, cut_at, again):
    put(tmp_path, 1)
    if again:
        put(tmp_path, 2, value=5)
    renames: list[Path] = []
    real = Path.rename

    def rename(self, target):
        if len(renames) == cut_at:
            raise PowerCutError
        renames.append(self)
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        patch.setattr(shutil, "rmtree", lambda *a, **k: None)  # a dead process removes nothing
        if cut_at == 0 or again:
            with pytest.raises(PowerCutError):
                put(tmp_path, 2)
        else:
            put(tmp_path, 2)
    found = newest_of(tmp_path)
    assert found.skipped == ()
    _, weights, _ = load(found.path)
    expected = 5 if again else 2 if cut_at else 1
    assert weights["w"].tolist() == [expected] * 3
    put(tmp_path, 3)
    assert not any(name.startswith(".") for name in names(tmp_path))
    assert ("round-000002" in names(tmp_path)) == (again or cut_at == 1)


def test_a_left_over_temporary_folder_is_ignored_and_removed(tmp_path):
    put(tmp_path, 1)
    left = tmp_path / "checkpoints" / ".new-round-000002"
    left.mkdir()
    (left / "weights.safetensors").write_bytes(b"half")
    assert newest_of(tmp_path).manifest.position.round == 1
    put(tmp_path, 2)
    assert names(tmp_path) == ["round-000001", "round-000002"]


def test_a_full_disk_keeps_the_old_and_says_so(tmp_path, monkeypatch):
    put(tmp_path, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(PotluckError, match=r"round-000002.*No space left"):
            put(tmp_path, 2)
    assert names(tmp_path) == ["round-000001"]
    assert newest_of(tmp_path).manifest.position.round == 1


def test_the_last_few_and_the_best_are_kept(tmp_path):
    put(tmp_path, 1, keep=2)
    mark_best(tmp_path, Best(round=1, metric="accuracy", value=0.5))
    for round in range(2, 6):
        put(tmp_path, round, keep=2)
    assert names(tmp_path) == ["best.json", "round-000001", "round-000004", "round-000005"]
    assert best_path(tmp_path) == tmp_path / "checkpoints" / "round-000001"
    mark_best(tmp_path, Best(round=5, metric="accuracy", value=0.6))
    put(tmp_path, 6, keep=2)
    assert names(tmp_path) == ["best.json", "round-000005", "round-000006"]
    assert best(tmp_path) == Best(round=5, metric="accuracy", value=0.6)


def test_nothing_is_pruned_while_the_best_is_unknown(tmp_path):
    put(tmp_path, 1)
    (tmp_path / "checkpoints" / "best.json").write_text("{")
    with pytest.raises(InputError, match=r"best\.json"):
        best(tmp_path)
    put(tmp_path, 2, keep=1)
    assert "round-000001" in names(tmp_path)


def test_writing_an_earlier_round_gives_up_the_later_ones(tmp_path):
    put(tmp_path, 1, keep=1)
    flip(put(tmp_path, 9, keep=2) / "weights.safetensors")
    put(tmp_path, 2, keep=1)
    assert names(tmp_path) == ["round-000002"]


def test_a_round_written_again_replaces_the_first(tmp_path):
    put(tmp_path, 1, value=5)
    _, weights, _ = load(put(tmp_path, 1, value=6))
    assert weights["w"].tolist() == [6, 6, 6]
    assert names(tmp_path) == ["round-000001"]
