"""What counts as a name that means two things."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tools.trees import Files, measured

TYPE = "sample/device/messages.py"


def _twice(root: Path, changes: Files) -> object:
    return measured(root, changes)["names_twice"].value


@pytest.mark.parametrize(
    "text",
    [
        "class Value(Enum): ...\n",
        "Value = int | str\n",
        "Value: TypeAlias = int\n",
        "Value = NewType('Value', int)\n",
        "if x:\n    class Value: ...\n",
        "try:\n    pass\nexcept ImportError:\n    class Value: ...\n",
    ],
)
def test_classes_and_aliases_are_names(text: str, tmp_path: Path):
    assert _twice(tmp_path, {TYPE: text}) == ["Value"]


@pytest.mark.parametrize(
    "text",
    [
        "from sample.values import Value\n",
        "VALUE = 1\n",
        "value = 1\n",
        "Value = TypeVar('Value')\n",
        "def made() -> None:\n    class Value: ...\n",
        "class Other:\n    class Value: ...\n",
    ],
)
def test_imports_constants_type_variables_and_what_is_inside_others_are_not(text: str, tmp_path: Path):
    assert _twice(tmp_path, {TYPE: text}) == []


def test_private_names_may_be_given_twice(tmp_path: Path):
    assert _twice(tmp_path, {"sample/values.py": "class _Own: ...\n", TYPE: "class _Own: ...\n"}) == []


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["device/plan", "coordinator/plan"], ["plan"]),
        (["device/coordinator"], ["coordinator"]),
        (["plan/x", "device/plan/y"], ["plan"]),
        (["device/events", "coordinator/events", "device/process", "coordinator/process"], []),
        (["plan/x", "commands/plan"], []),
        (["job/job"], []),
        (["job/job", "device/job"], ["job"]),
        (["plan/x", "cli/plan"], []),
        (["plan/x", "cli/plan", "commands/plan"], ["plan"]),
        (["cli/plan", "commands/plan"], ["plan"]),
        (["plan/x", "device/plan"], ["plan"]),
    ],
)
def test_a_module_name_is_given_once_but_verbs_are_called_like_what_does_them(
    files: list[str], names: list[str], tmp_path: Path
):
    assert _twice(tmp_path, {f"sample/{file}.py": "" for file in files}) == names
