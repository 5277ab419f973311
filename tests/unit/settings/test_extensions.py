"""Code of others: named by the owner of a machine, imported once, and one line for what cannot be."""

import os
from pathlib import Path

import pytest

from potluck.errors import InputError
from potluck.settings.extensions import GROUP, VARIABLE, load_extensions

COUNTS = "import os\nos.environ['LOADED'] = os.environ.get('LOADED', '') + '{}'\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOADED", "")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _loaded() -> str:
    return os.environ["LOADED"]


def test_modules_and_files_are_imported_once(folder):
    (folder / "first_extension.py").write_text(COUNTS.format("a"))
    (folder / "other").mkdir()
    (folder / "other" / "first_extension.py").write_text(COUNTS.format("b"))
    named = {VARIABLE: f"first_extension, {folder}/other/first_extension.py,"}
    load_extensions(named)
    load_extensions(named)
    assert _loaded() == "ab"


def test_a_file_is_found_from_the_current_folder(folder, monkeypatch):
    (folder / "nearby_extension.py").write_text(COUNTS.format("c"))
    monkeypatch.chdir(folder)
    load_extensions({VARIABLE: "nearby_extension.py"})
    assert _loaded() == "c"


def test_installed_packages_name_theirs(folder):
    (folder / "packed_extension.py").write_text(COUNTS.format("d"))
    _package(folder, "packed_extension")
    load_extensions({})
    assert _loaded() == "d"


def test_nothing_is_loaded_where_nothing_is_named():
    load_extensions({})
    assert _loaded() == ""


@pytest.mark.parametrize(
    ("content", "why"),
    [("import not_there\n", "ModuleNotFoundError: No module named 'not_there'.; correct its name, or install it"),
     ("1 / 0\n", "ZeroDivisionError: division by zero.; repair it; POTLUCK_DEBUG=1 shows where"),
     ("open('no_such_file')\n", "FileNotFoundError: .*no_such_file'.; repair it"),
     ("raise SystemExit('two\\nlines')\n", "SystemExit: two lines.; repair it"),
     ("x =\n", "SyntaxError: .*; repair it")],
)  # fmt: skip
def test_what_fails_while_it_is_imported_gets_one_line_that_says_what_to_repair(folder, content, why):
    (folder / "broken.py").write_text(content)
    for name in ("broken", f"{folder}/broken.py"):
        for _ in range(2):  # the second time it is still broken
            with pytest.raises(InputError, match=f"^{VARIABLE}: '.*broken.*' cannot be imported .{why}") as it:
                load_extensions({VARIABLE: name})
            assert "\n" not in str(it.value)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.at_all", "settings_of.nowhere", "nowhere.py"])
def test_what_is_not_there_is_to_be_named_rightly(folder, name):
    (folder / "settings_of").mkdir()
    why = "cannot be imported .*; give modules or .py files, separated by commas$"
    with pytest.raises(InputError, match=f"^{VARIABLE}: '{name}' {why}"):
        load_extensions({VARIABLE: name})


def test_what_an_extension_registers_wrongly_is_said_as_it_is(folder):
    (folder / "taken.py").write_text(
        "from potluck.plan.schedule.known_schedules import register\n"
        "from potluck.plan.schedule.one_f_one_b import OneForwardOneBackward\n"
        "register(OneForwardOneBackward())\n"
    )
    why = r"taken.py': schedule '1f1b': there is one already; give yours another name$"
    with pytest.raises(InputError, match=f"^{VARIABLE}: '.*{why}"):
        load_extensions({VARIABLE: f"{folder}/taken.py"})


def test_a_package_that_cannot_be_imported_is_named(folder):
    _package(folder, "gone_extension")
    with pytest.raises(InputError, match=r"^extension 'mine' of added cannot be imported .*; repair or uninstall"):
        load_extensions({})


def _package(folder: Path, module: str) -> None:
    info = folder / "added-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nmine = {module}\n")
