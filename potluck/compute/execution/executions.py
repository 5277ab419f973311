"""Ways to execute a stage by the names that a job gives them in `kernels`; the one place where a new one is added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from potluck.compute.execution.execution import Execution
from potluck.compute.execution.interpreter import Interpreter
from potluck.errors import InputError
from potluck.program.program import Program

# Of a program, the positions of its nodes to run, the values to keep, and the device to run them on.
MakeExecution = Callable[[Program, Sequence[int], Iterable[int], torch.device], Execution]

EXECUTIONS: Mapping[str, MakeExecution] = {
    "quick": Interpreter,  # with the kernels that are faster here
    "torch": Interpreter,  # with torch's own
}


def execution_named(name: str) -> MakeExecution:
    if name not in EXECUTIONS:
        raise InputError(f"kernels {name!r}: not known; give one of {', '.join(EXECUTIONS)}, or update potluck here")
    return EXECUTIONS[name]
