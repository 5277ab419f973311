"""Zoo models are built once for all tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from potluck.model.build import BuiltModel
from tests.models.zoo import all_cases
from tests.unit.model.small_models import build_case

CASES = {case.name: case for case in all_cases()}
_built: dict[str, BuiltModel] = {}


@pytest.fixture(scope="session")
def zoo() -> Callable[[str], BuiltModel]:
    """A zoo model by name, built."""

    def get(name: str) -> BuiltModel:
        if name not in _built:
            _built[name] = build_case(CASES[name])
        return _built[name]

    return get
