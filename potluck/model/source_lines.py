"""Where in the user's code an operator comes from, and one line about an export that failed."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from torch import fx

from potluck.errors import ModelError

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_OURS = str(Path(__file__).parent.parent)
_PYTHON = sysconfig.get_paths()["stdlib"]
_WAYS_OUT = (
    "either write that line without looking at values (torch.where, masks, fixed sizes), "
    "or give the model hand-cut as a list of modules (Job(model=[first, second, …])) that each trace"
)
_CACHE = "if this is its cache of past keys, set use_cache=False in the model's config; else "
_SPECIALISED = "your code specialized it to be a constant"
_FAKE_CONSTANT = "fake tensor in the exported program constant"


def _users_own(path: str) -> bool:
    """Whether a file is neither torch's, nor transformers', nor Python's, nor ours."""
    parts = Path(path).parts
    if "site-packages" in parts:
        return not {"torch", "transformers"} & set(parts)
    return not path.startswith((_OURS, _PYTHON, "<"))


def _best_frame(text: str) -> str | None:
    """The innermost line of the user's own; else of a library above torch."""
    frames: list[tuple[str, str]] = _FRAME.findall(text)
    own = [f for f in frames if _users_own(f[0])]
    above = [f for f in frames if "torch" not in Path(f[0]).parts and not f[0].startswith((_OURS, "<"))]
    best = own or above
    return f"{Path(best[-1][0]).name}:{best[-1][1]}" if best else None


def source_of(node: fx.Node) -> str:
    """ "file:line" of the innermost user code that made a node; the module's path, or the loss, if there is none."""
    line = _best_frame(node.meta.get("stack_trace") or "")
    if line is not None:
        return line
    stack = node.meta.get("nn_module_stack") or {}
    return module_of(node) or ("the model" if len(stack) > 1 else "the loss")


def calling_line() -> str:
    """ "file:line" of the innermost user code that is running now."""
    own = [f for f in traceback.extract_stack() if _users_own(f.filename)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "the model"


def module_of(node: fx.Node) -> str:
    """Path of the innermost nn.Module a node belongs to, without our own wrapper."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    path = str(list(stack.values())[-1][0]) if stack else ""
    return "" if path == "model" else path.removeprefix("model.")


def explain_export_failure(error: Exception) -> ModelError:
    """One line: which source line cannot be traced, why, and the two ways out."""
    text = str(error)
    where = _best_frame(text) or raised_in(error) or "the model"
    if _SPECIALISED in text:
        return ModelError(
            f"{where}: the model or the loss works for one batch size only; it must work for any number of samples: "
            "look for a constant in a view or reshape, and for a loop over the samples"
        )
    if _FAKE_CONSTANT in text:
        return ModelError(f"{where}: the forward pass uses a tensor's .data; write x.detach() within torch.no_grad()")
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    reason = reason.split(". ")[0][:200].rstrip(".")
    first = _CACHE if "cache" in f"{where} {reason}".lower() else ""
    return ModelError(f"{where}: the model cannot be traced ({type(error).__name__}: {reason}); {first}{_WAYS_OUT}")


def raised_in(error: BaseException) -> str | None:
    """ "file:line" of the innermost user code that an error went through."""
    found: str | None = None
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if _users_own(path):
            found = f"{Path(path).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
