"""What a comparison says where bits differ that should be the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from potluck.commands import verifying
from potluck.commands.verifying import Difference, verify_job
from potluck.compress import codec_registry
from potluck.compress.codec_registry import register
from potluck.compress.raw import Raw
from potluck.types import Fleet
from tests.models.zoo_jobs import devices
from tests.unit.coordinator.small_job import plan_of, small_job


class Kept(Raw):
    name = "kept"


@contextlib.contextmanager
def nobody(*given: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("codec", "said"), [("kept", "; codec 'kept' says that it is exact: look there first"), ("raw", "")]
)
def test_a_codec_that_says_it_is_exact_is_the_first_to_look_at(
    monkeypatch: pytest.MonkeyPatch, codec: str, said: str
) -> None:
    monkeypatch.setattr(codec_registry, "_known", dict(codec_registry._known))
    register(Kept())
    monkeypatch.setattr(verifying, "LiveFleet", nobody)
    monkeypatch.setattr(verifying, "compare", lambda *given, **more: Difference(("w",), 0.5, losses_equal=False))
    raw = plan_of(("d0",), ("d1",))
    plan = replace(raw, stages=(replace(raw.stages[0], codec=codec), raw.stages[1]))
    found = verify_job(small_job(), plan, Fleet(devices=devices(2)), rounds=2)
    assert found.rung == 0
    assert found.why == f"1 tensors differ, first ('w',), where every bit should be the same{said}"
