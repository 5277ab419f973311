"""Runs torch.export over a form: quietly, with one line where it fails, and without weights if they are on meta."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from potluck.errors import ModelError
from potluck.model.empty import weights_that_trace
from potluck.model.source_lines import explain_export_failure

_ASSIGNED = re.compile(r"self\.([\w.]+)(?=.* assigned during export)")


def trace(form: nn.Module, feeds: dict[str, torch.Tensor]) -> tuple[Any, set[str]]:
    """The exported form, and the names of plain tensor attributes the forward assigned to."""
    dynamic = {name: {0: Dim.DYNAMIC} for name in feeds}
    try:
        with _quiet(), weights_that_trace(form), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            exported = torch.export.export(form, (feeds,), dynamic_shapes=(dynamic,), strict=False)
    except ModelError:
        raise
    except Exception as error:  # torch.export and the user's forward may fail in any way
        raise explain_export_failure(error) from None
    return exported, {name for warning in said for name in _ASSIGNED.findall(str(warning.message))}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within, torch.export prints no graphs: what is wrong is said in one line afterwards."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(level)
