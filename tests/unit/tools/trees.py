"""A small project in a folder, that keeps all rules of the house."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.house.__main__ import measure
from tools.house.measure import Measure
from tools.house.source import read

PACKAGE = "sample"  # not the real package: that may be imported already, and would be found in its place

GOOD = {
    "sample/__init__.py": '"""The package."""\n',
    "sample/__main__.py": "import sample.cli.main\n",
    "sample/values.py": "class Value:\n    def twice(self, n: int) -> int:\n        return 2 * n\n",
    "sample/device/__init__.py": '"""One process."""\n',
    "sample/device/messages.py": "from sample.values import Value\n",
    "sample/coordinator/__init__.py": '"""The other process."""\n',
    "sample/coordinator/messages.py": "from sample.values import Value\n",
    "tests/unit/test_all.py": "import sample.values, sample.device.messages\nfrom sample.coordinator import messages\n",
}

Files = Mapping[str, str | None]  # of a path, what is in the file; None leaves it out


def write(root: Path, changes: Files) -> None:
    """Put the good project with these changes into folder `root`."""
    for path, text in {**GOOD, **changes}.items():
        if text is not None:
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def measured(root: Path, changes: Files) -> dict[str, Measure]:
    """What is measured of the good project with these files added, replaced or left out."""
    write(root, changes)
    return {found.key: found for found in measure(read(root, PACKAGE))}
