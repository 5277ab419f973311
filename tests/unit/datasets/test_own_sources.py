"""Folders of pictures and functions of a device's owner, as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from potluck.datasets.own_sources import from_function, images
from potluck.errors import InputError


def picture(path: Path, mode: str = "L", size: tuple[int, int] = (3, 2), color: int | tuple[int, ...] = 51) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)


def test_names_are_numbered_in_order_and_a_label_without_pictures_keeps_its_place(tmp_path: Path) -> None:
    for name in ("dog/2.png", "ant/1.png", "dog/1.PNG"):
        picture(tmp_path / name)
    (tmp_path / "cat").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    arrays, labels = images("pets", tmp_path)
    assert labels == ("ant", "cat", "dog")
    assert arrays["label"].tolist() == [0, 2, 2]
    assert arrays["input"].shape == (3, 1, 2, 3)
    assert arrays["input"].dtype == np.float32
    assert arrays["input"] == pytest.approx(0.2)


def test_folders_that_are_numbers_are_the_labels_themselves(tmp_path: Path) -> None:
    picture(tmp_path / "10" / "a.png")
    picture(tmp_path / "7" / "a.png")
    arrays, labels = images("digits", tmp_path)
    assert (arrays["label"].tolist(), labels) == ([10, 7], ())


def test_colours_are_channels_first(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png", "RGB", color=(255, 0, 51))
    found = images("x", tmp_path)[0]["input"]
    assert found.shape == (1, 3, 2, 3)
    assert found[0, :, 0, 0] == pytest.approx([1.0, 0.0, 0.2])


def test_folders_that_make_no_data_set_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folders in it; give one folder for each label"):
        images("x", tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match="no pictures in the folders"):
        images("x", tmp_path)
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "a" / "2.png", size=(4, 4))
    with pytest.raises(InputError, match=r"2\.png is \(1, 4, 4\), and others are \(1, 2, 3\); make them equal"):
        images("x", tmp_path)
    (tmp_path / "a" / "2.png").write_bytes(b"no picture at all")
    with pytest.raises(InputError, match=r"2\.png is no picture .*take it out"):
        images("x", tmp_path)


OWNER = """
def named(): return {"input": [[1.0]], "label": [3]}
def pair(): return ([[1.0]], [3])
def number(): return 7
def fails(): raise ValueError("two\\nlines")
"""


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "owners_own_data.py").write_text(OWNER)
    monkeypatch.syspath_prepend(tmp_path)
    return "owners_own_data"


@pytest.mark.parametrize("function", ["named", "pair"])
def test_a_function_gives_arrays_by_name_or_inputs_and_labels(owner: str, function: str) -> None:
    arrays = from_function("mine", f"{owner}:{function}")
    assert {name: array.tolist() for name, array in arrays.items()} == {"input": [[1.0]], "label": [3]}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("number", "returns a int; return a dict of arrays"),
        ("fails", "fails: ValueError: two lines; correct it"),
        ("missing", "fails: AttributeError"),
    ],
)
def test_a_function_that_gives_something_else_is_refused_in_one_line(owner: str, function: str, words: str) -> None:
    with pytest.raises(InputError, match=rf"^--data mine: {owner}:{function} {words}") as caught:
        from_function("mine", f"{owner}:{function}")
    assert "\n" not in str(caught.value)
