"""Data that a device owns: what is read, and what is said of files that do not fit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from potluck.datasets.own_data import LocalData, WantedData, read_local
from potluck.errors import InputError

IMAGES = {"input": WantedData((8, 8), "float32"), "label": WantedData((), "int64")}
TEXT = {"input": WantedData((4,), "int64"), "label": WantedData((4,), "int64")}


def images(count: int = 5) -> dict[str, Any]:
    return {"input": np.ones((count, 8, 8), np.float32), "label": np.arange(count)}


def broken() -> Any:
    """Three rows of numbers, one of none and one that is too large."""
    array = images()["input"]
    array[1], array[4, 0, 0] = np.nan, np.inf
    return array


def npy_bytes() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(9))
    return file.getvalue()


def npz_bytes() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, input=np.arange(9), label=np.arange(9))
    return file.getvalue()


def test_arrays_are_read_from_either_kind_of_file_and_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **images())
    save_file(images(), tmp_path / "a.safetensors")
    for kind in ("npz", "safetensors"):
        data = read_local(f"digits={tmp_path / f'a.{kind}'}").fitted(IMAGES)
        assert (data.name, data.samples) == ("digits", 5)
        assert data.arrays["label"].tolist() == [0, 1, 2, 3, 4]


def test_text_and_tokens_are_cut_into_windows_with_what_follows_as_labels(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("abcdefghij")
    np.save(tmp_path / "t.npy", np.arange(10, dtype=np.int32))
    text, tokens = (read_local(f"t={tmp_path / name}").fitted(TEXT) for name in ("t.txt", "t.npy"))
    assert text.arrays["input"].tolist() == [[97, 98, 99, 100], [101, 102, 103, 104]]
    assert tokens.arrays["label"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert str(tokens.arrays["input"].dtype) == "int64"


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.ones((3, 8, 8), np.float32), "label": np.arange(3)}, "needs 'input'"),
        ({"input": np.ones((3, 9), np.float32), "label": np.arange(3)}, r"\(9,\) each, and the job's are \(8, 8\)"),
        ({"input": np.ones((3, 8, 8)), "label": np.arange(3)}, "is float64, and the job's is float32"),
        ({"input": broken(), "label": np.arange(5)}, "its input has 2 of 5 rows with NaN or infinity; take them out"),
    ],
)
def test_what_does_not_fit_the_job_is_named(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=words):
        read_local(f"digits={tmp_path / 'a.npz'}").fitted(IMAGES)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "holds no array"),
        ({"input": np.ones((0, 2)), "label": np.ones(0)}, "is empty"),
        ({"input": np.ones((3, 2)), "label": np.ones(2)}, "input 3, label 2; make them equal"),
        ({"input": np.float32(3), "label": np.ones(2)}, "samples along the first axis"),
    ],
)
def test_what_is_no_data_set_is_refused(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=words):
        read_local(f"digits={tmp_path / 'a.npz'}")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npz", b"PK\x03\x04 nonsense", "cannot be read"),
        ("a.safetensors", b"nonsense", "cannot be read"),
        ("a.npz", b"", "cannot be read"),
        ("a.npz", b"no archive at all", "it is no archive of arrays; write it again"),
        ("a.npy", b"", "cannot be read"),
        ("a.npz", npy_bytes(), "one array, not an archive"),
        ("a.npy", npz_bytes(), "an archive, not one array"),
        ("a.npz", npz_bytes()[:-40] + bytes(40), "cannot be read"),
        ("a.txt", b"", "is empty"),
        ("a.csv", b"1,2", "is neither one of"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_local(f"digits={tmp_path / name}")


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", input=np.array([{"a": 1}], dtype=object), label=np.ones(1))
    with pytest.raises(InputError, match="cannot be read"):
        read_local(f"digits={tmp_path / 'a.npz'}")


@pytest.mark.parametrize("text", ["digits", "=a.npz", "digits=", "two words=a.npz", ":eval=a.npz", "digits:test=a.npz"])
def test_a_name_and_a_path_are_needed(text: str) -> None:
    with pytest.raises(InputError, match="NAME=PATH"):
        read_local(text)


def test_a_file_that_is_not_there_and_text_that_is_too_short(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_local(f"digits={tmp_path / 'a.npz'}")
    with pytest.raises(InputError, match="fewer than one window of 5"):
        LocalData("t", tmp_path, {}, np.arange(4)).fitted(TEXT)
    with pytest.raises(InputError, match="does not train on those"):
        LocalData("t", tmp_path, {}, np.arange(40)).fitted(IMAGES)


def test_a_folder_of_images_is_read_with_a_label_for_each_folder(tmp_path: Path) -> None:
    for label, value in (("cat", 10), ("dog", 200)):
        (tmp_path / label).mkdir()
        for number in range(2):
            Image.fromarray(np.full((8, 8), value + number, np.uint8)).save(tmp_path / label / f"{number}.png")
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    data = read_local(f"pets={tmp_path}")
    assert data.samples == 4
    assert data.classes == ("cat", "dog")
    assert data.arrays["label"].tolist() == [0, 0, 1, 1]
    assert data.arrays["input"].shape == (4, 1, 8, 8)
    assert data.arrays["input"][3, 0, 0, 0] == pytest.approx(201 / 255)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "dog" / "z.png")
    with pytest.raises(InputError, match=r"z\.png is \(3, 8, 8\), and others are \(1, 8, 8\); make them equal"):
        read_local(f"pets={tmp_path}")
    (tmp_path / "dog" / "z.png").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"z\.png is no picture"):
        read_local(f"pets={tmp_path}")


def picture(folder: Path) -> None:
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "one.png")


def test_folders_that_are_numbers_say_their_labels_themselves(tmp_path: Path) -> None:
    for label in ("10", "2", "7"):
        picture(tmp_path / label)
    data = read_local(f"digits={tmp_path}")
    assert sorted(data.arrays["label"].tolist()) == [2, 7, 10]
    assert data.classes == ()


def test_an_empty_folder_keeps_the_place_of_its_label_and_a_hidden_one_takes_none(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / ".thumbnails").mkdir()
    picture(tmp_path / "dog")
    data = read_local(f"pets={tmp_path}")
    assert data.arrays["label"].tolist() == [1]
    assert data.classes == ("cat", "dog")


def test_a_function_of_the_owner_gives_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import numpy as np\n\ndef load():\n    return np.ones((3, 8, 8), np.float32), np.arange(3)\n"
    (tmp_path / "my_own_data.py").write_text(f"{code}\ndef wrong():\n    return 1 / 0\n")
    assert read_local("digits=my_own_data:load").fitted(IMAGES).samples == 3
    with pytest.raises(InputError, match="my_own_data:wrong fails: ZeroDivisionError: division by zero; correct it"):
        read_local("digits=my_own_data:wrong")
    with pytest.raises(InputError, match="no_such_thing:load fails: ModuleNotFoundError"):
        read_local("digits=no_such_thing:load")
