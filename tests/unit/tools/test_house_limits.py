"""Each limit of the house is red when it is missed, alone, and says where; a project that keeps all is green."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.tools.trees import GOOD, PACKAGE, Files, measured, write
from tools.house.__main__ import broken, main, offences
from tools.house.limits import LIMITS, NOT_YET, SOFT_FUNCTION, judge
from tools.house.sizes import nine_of_ten


def _function(lines: int, name: str = "long") -> str:
    return f"def {name}() -> None:\n" + "    pass\n" * (lines - 1)


def _lines(n: int) -> str:
    return "x = 1\n" * n


def _imported(*modules: str) -> str:
    return "".join(f"import sample.{module}\n" for module in modules)


LONG_FUNCTIONS = "".join(_function(21, f"f{i}") for i in range(2))
CROWD = {f"sample/device/m{i}.py": "" for i in range(20)}

# Of each limit, files that miss it, and the place that is named.
RED: dict[str, tuple[Files, str]] = {
    "largest_room": (CROWD, "sample/device/: 21 files"),
    "houses_missing": ({path: None for path in GOOD if "device" in path}, "sample.device is not there"),
    "device_coordinator_imports": (
        {
            "sample/device/messages.py": "def later() -> None:\n    import sample.between\n",
            "sample/between.py": "import sample.coordinator.messages\n",
            "tests/unit/test_more.py": _imported("between"),
        },
        "sample/device/messages.py:2: sample.device.messages -> sample.between -> sample.coordinator.messages",
    ),
    "import_cycles": (
        {
            "sample/values.py": "def later() -> None:\n    import sample.others\n",
            "sample/others.py": "import sample.values\n",
            "tests/unit/test_more.py": _imported("others"),
        },
        "sample/others.py:1: sample.others, sample.values import each other",
    ),
    "names_twice": ({"sample/device/messages.py": "Value = int | str\n"}, "sample/device/messages.py:1: Value is also"),
    "max_file": ({"sample/values.py": _lines(401)}, "sample/values.py: 401 lines"),
    "median_file": ({path: _lines(121) for path in GOOD if "values" in path or "messages" in path}, "121 lines"),
    "p90_function": ({"sample/values.py": LONG_FUNCTIONS}, "sample/values.py:1 f0: 21 lines"),
    "max_file_around": ({"tests/unit/test_more.py": _lines(501)}, "tests/unit/test_more.py: 501 lines"),
    "max_function": ({"tests/unit/test_more.py": _function(101)}, "tests/unit/test_more.py:1 long: 101 lines"),
    "untested_files": ({"tests/unit/test_all.py": _imported("values", "device.messages")}, "coordinator/messages.py:1"),
    "typed": ({"sample/values.py": "def bare(n) -> None: ...\n"}, "sample/values.py:1: n has no type"),
    "room_docstrings": ({"sample/device/__init__.py": ""}, "sample/device/__init__.py:1: write a docstring"),
}


def test_a_project_that_keeps_all_rules_is_green(tmp_path: Path):
    measures = list(measured(tmp_path, {}).values())
    assert broken(measures, {}) == []
    assert list(offences(measures)) == []


def test_each_limit_has_its_red_project():
    assert RED.keys() == LIMITS.keys()


@pytest.mark.parametrize("key", RED)
def test_a_missed_limit_is_the_only_one_broken_and_names_the_place(key: str, tmp_path: Path):
    changes, place = RED[key]
    measures = list(measured(tmp_path, changes).values())
    assert broken(measures, {}) == [key]
    lines = list(offences(measures))
    assert any(place in line for line in lines), lines
    assert all(line.endswith(f"[{key}]") for line in lines)


def test_every_limit_not_met_yet_is_a_limit_and_is_missed():
    assert [key for key, size in NOT_YET.items() if LIMITS[key].allows(size)] == []


def test_a_limit_not_met_yet_may_be_missed_as_far_as_today_and_no_further():
    assert judge("max_file", 423, {"max_file": 423}) == (True, "not yet")
    assert judge("max_file", 424, {"max_file": 423}) == (False, "BROKEN, was 423")
    assert judge("max_file", 401, {}) == (False, "BROKEN")


def test_whoever_comes_closer_to_a_limit_is_told_to_lower_the_ratchet():
    assert judge("max_file", 410, {"max_file": 423}) == (True, "not yet, set it to 410 in NOT_YET")
    assert judge("max_file", 400, {"max_file": 423}) == (True, "ok, delete it from NOT_YET")


@pytest.mark.parametrize(
    ("lines", "length"), [([], 0), ([7], 7), ([1] * 9 + [50], 1), ([60, 50] + [1] * 8, 50), ([60, 50] + [1] * 9, 50)]
)
def test_nine_of_ten_are_no_longer_than_this(lines: list[int], length: int):
    assert nine_of_ten(lines) == length


def test_a_limit_from_below_is_missed_below_it():
    assert judge("typed", 0.999, {}).passes
    assert judge("typed", 0.99, {"typed": 0.99}) == (True, "not yet")
    assert not judge("typed", 0.98, {"typed": 0.99}).passes


def test_the_report_is_a_table_and_a_line_for_each_offence(tmp_path: Path, capsys):
    write(tmp_path, {"sample/values.py": _function(101)})
    assert main([], tmp_path, PACKAGE) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "sample/values.py:1 long: 101 lines; split it (at most 100) [max_function]" in printed
    assert any(row.split() == ["max_function", "101", "at", "most", "100", "BROKEN"] for row in printed)


def test_over_the_soft_limit_is_named_but_passes(tmp_path: Path, capsys):
    write(tmp_path, {"tests/unit/test_more.py": _function(SOFT_FUNCTION + 1)})
    assert main([], tmp_path, PACKAGE) == 0
    assert f"tests/unit/test_more.py:1 long: {SOFT_FUNCTION + 1} lines; think of" in capsys.readouterr().out


def test_as_json_it_is_one_object_and_fails_all_the_same(tmp_path: Path, capsys):
    write(tmp_path, {"sample/values.py": _function(101)})
    assert main(["--json"], tmp_path, PACKAGE) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["max_function"] == 101
    assert printed["rooms"] == {"sample": 2, "sample.coordinator": 1, "sample.device": 1}
