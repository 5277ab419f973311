"""What the verbs for runs hand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import potluck.cli.verbs.attach
import potluck.cli.verbs.status
import potluck.cli.verbs.stop
from potluck.cli.run_verbs import attach, status, stop


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What each verb was asked."""
    found: list[tuple[Any, ...]] = []

    def keep(verb: str) -> Any:
        def told(run: Path | None, **choices: Any) -> int:
            found.append((verb, run, choices))
            return 0

        return told

    for module, name in ((potluck.cli.verbs.status, "status"), (potluck.cli.verbs.attach, "attach")):
        monkeypatch.setattr(module, name, keep(name))
    monkeypatch.setattr(potluck.cli.verbs.stop, "stop", keep("stop"))
    return found


def test_each_hands_on_the_run_and_its_choices(asked: list[tuple[Any, ...]]) -> None:
    for verb, arguments in (
        (status, []), (status, ["runs/a", "--json"]), (attach, ["runs/a"]), (stop, ["runs/a", "--now"]),
        (stop, ["--timeout", "5s"]),
    ):  # fmt: skip
        CliRunner().invoke(verb, arguments, catch_exceptions=False)
    assert asked == [
        ("status", None, {"as_json": False}),
        ("status", Path("runs/a"), {"as_json": True}),
        ("attach", Path("runs/a"), {}),
        ("stop", Path("runs/a"), {"now": True, "timeout": "10min"}),
        ("stop", None, {"now": False, "timeout": "5s"}),
    ]
