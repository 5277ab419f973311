"""What docs/extending.md shows is an extension as it stands there."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from potluck.compress import codec_registry
from potluck.paramserver import policy_choice
from potluck.paramserver.asked_policy import names_of_policy
from potluck.paramserver.events import Answer
from potluck.plan import named_planners
from potluck.plan.schedule import known_schedules
from potluck.settings.extensions import VARIABLE, load_extensions
from tests.models.planner_instances import instance

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own: nobody has registered anything yet, and afterwards it is as it was."""
    monkeypatch.setattr(known_schedules, "_KNOWN", {"1f1b": known_schedules.schedule_named("1f1b")})
    monkeypatch.setattr(codec_registry, "_known", {"raw": codec_registry.codec_named("raw")})
    built_in = {name: made for name, made in policy_choice._FACTORIES.items() if name != "every-so-often"}
    monkeypatch.setattr(policy_choice, "_FACTORIES", built_in)
    monkeypatch.setattr(named_planners, "_ADDED", {})


def test_each_snippet_is_a_whole_extension_that_does_what_the_page_says(tmp_path: Path) -> None:
    for number, snippet in enumerate(SNIPPETS):
        (tmp_path / f"snippet_{number}.py").write_text(snippet, encoding="utf-8")
    load_extensions({VARIABLE: ",".join(str(file) for file in sorted(tmp_path.iterdir()))})
    order = known_schedules.schedule_named("fill-drain").order(1, 2)
    assert list(order) == [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)]
    half, tensor = codec_registry.codec_named("half"), torch.rand(2, 3)
    parts = half.encode(tensor)
    assert half.bytes((2, 3), "float32") == sum(part.nbytes for part in parts) == 12
    assert torch.equal(half.decode(parts, (2, 3), torch.float32), tensor.half().float())
    policy = policy_choice.choose("every-so-often:7").policy(slowest_s=0.1)
    assert policy.joined("a", 10, 0.0).paces["a"].steps == 7
    often = policy_choice.choose("oftener-later:40").policy(slowest_s=0.1)
    steps = []
    for loss in (math.nan, 2.0, 0.9, 0.8, 0.4):
        assert often.checked(loss, 0.0) == Answer()
        steps.append(often.joined("a", 10, 0.0).paces["a"].steps)
    assert (steps, often.check_s) == ([40, 40, 20, 20, 10], 4.0)
    facts, profile = instance(5, 3, 6, memory=False)
    assert named_planners.planned_by("filled", facts, profile, 8, 6).schedule == "fill-drain"
    assert len(SNIPPETS) == 5  # and each of them was tried


def test_the_page_lists_the_names_that_are_taken() -> None:
    listed = TEXT.partition("**Names that are taken.**")[2].partition("A policy that")[0]
    assert set(re.findall(r"`(\w+)`", listed)) - {"Policy"} == set(names_of_policy())
