"""Where in the user's code an operator comes from, and one line about an export that failed."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from typing import Any

from torch import fx

from potluck.errors import ModelError

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = (f"{Path('torch')}", sysconfig.get_paths()["stdlib"])
_WAYS_OUT = (
    "either write that line without looking at values (torch.where, masks, fixed sizes), "
    "or give the model hand-cut as a list of modules (Job(model=[first, second, …])) that each trace"
)


def _users_own(path: str) -> bool:
    own = str(Path(__file__).parent.parent)
    parts = Path(path).parts
    library = "site-packages" in parts and ("torch" in parts or "transformers" in parts)
    return not (library or path.startswith((own, _LIBRARY[1])) or path.startswith("<"))


def _best_frame(text: str) -> tuple[str, str] | None:
    frames: list[tuple[str, str]] = _FRAME.findall(text)
    own = [f for f in frames if _users_own(f[0])]
    return (own or frames)[-1] if frames else None


def source_of(node: fx.Node) -> str:
    """ "file:line" of the innermost user code that made a node."""
    trace = node.meta.get("stack_trace") or ""
    frame = _best_frame(trace)
    return f"{Path(frame[0]).name}:{frame[1]}" if frame else "model"


def module_of(node: fx.Node) -> str:
    """Path of the innermost nn.Module a node belongs to, without our own wrapper."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return str(path).removeprefix("model.").removeprefix("model")


def explain_export_failure(error: Exception) -> ModelError:
    """One line: which source line cannot be traced, why, and the two ways out."""
    text = str(error)
    frame = _best_frame(text)
    if frame is None:
        frame = _frame_of_traceback(error)
    where = f"{Path(frame[0]).name}:{frame[1]}" if frame else "the model"
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    reason = reason.split(". ")[0][:200].rstrip(".")
    return ModelError(f"{where}: the model cannot be traced ({type(error).__name__}: {reason}); {_WAYS_OUT}")


def _frame_of_traceback(error: BaseException) -> tuple[str, str] | None:
    found: tuple[str, str] | None = None
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if _users_own(path):
            found = (path, str(trace.tb_lineno))
        trace = trace.tb_next
    return found
