"""Which imports count: between the houses, in circles, and as a test of a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tools.trees import Files, measured

ONLY_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {}\n"


@pytest.mark.parametrize(("importer", "imported"), [("device", "coordinator"), ("coordinator", "device")])
def test_neither_house_imports_the_other(importer: str, imported: str, tmp_path: Path):
    found = measured(tmp_path, {f"sample/{importer}/messages.py": f"import sample.{imported}.messages\n"})
    assert found["device_coordinator_imports"].value == 1


def test_imports_for_type_checkers_lead_nowhere(tmp_path: Path):
    changes = {
        "sample/device/messages.py": ONLY_TYPES.format("sample.coordinator.messages"),
        "sample/coordinator/messages.py": ONLY_TYPES.format("sample.device.messages"),
    }
    found = measured(tmp_path, changes)
    assert (found["device_coordinator_imports"].value, found["import_cycles"].value) == (0, 0)


def test_packages_import_in_a_circle_though_none_of_their_modules_do(tmp_path: Path):
    changes = {
        "sample/plan/a.py": "import sample.model.b\n",
        "sample/model/b.py": "",
        "sample/model/c.py": "import sample.between\n",
        "sample/between.py": "import sample.plan.d\n",
        "sample/plan/d.py": "",
        "sample/plan/__init__.py": "",
        "sample/model/__init__.py": "",
    }
    found = measured(tmp_path, changes)["import_cycles"]
    assert found.value == 1
    assert "sample/between.py:1: sample.between, sample.model, sample.plan import each other" in found.offences[0]


def test_a_module_may_import_the_package_it_is_in(tmp_path: Path):
    assert measured(tmp_path, {"sample/device/messages.py": "import sample.device\n"})["import_cycles"].value == 0


def _untested(root: Path, changes: Files) -> object:
    tests = {"tests/unit/test_all.py": "import sample.values, sample.coordinator.messages\n"}
    return measured(root, {**tests, **changes})["untested_files"].value


@pytest.mark.parametrize(
    "importing",
    [
        {"tests/equality/test_more.py": "import sample.device.messages\n"},
        {"tests/unit/test_more.py": "def test() -> None:\n    from sample.device import messages\n"},
        {"tests/unit/test_more.py": "from sample.device.messages import Value\n"},
        {
            "tests/unit/test_more.py": "import tests.models.a\n",
            "tests/models/a.py": "from sample.device import messages\n",
        },
        {
            "tests/unit/test_more.py": "from sample.device import Hello\n",
            "sample/device/__init__.py": "from sample.device.messages import Hello\n",
        },
    ],
)
def test_a_module_is_tested_where_a_test_or_its_helper_imports_it(importing: Files, tmp_path: Path):
    assert _untested(tmp_path, importing) == []


@pytest.mark.parametrize(
    "importing",
    [
        {"tests/process/test_more.py": "import sample.device.messages\n"},
        {"tests/models/a.py": "import sample.device.messages\n"},
        {"tests/unit/test_more.py": "import sample.device\n"},
        {"tests/unit/test_more.py": ONLY_TYPES.format("sample.device.messages")},
        {"sample/values.py": "import sample.device.messages\n"},
    ],
)
def test_a_module_is_not_tested_by_a_process_test_or_through_another_module(importing: Files, tmp_path: Path):
    assert _untested(tmp_path, importing) == ["sample/device/messages.py"]


def test_a_module_with_nothing_but_a_docstring_needs_no_test(tmp_path: Path):
    assert _untested(tmp_path, {"sample/device/messages.py": '"""Only words."""\n'}) == []
