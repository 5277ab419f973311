"""Train one PyTorch model on the devices you already have.

The names below are the public API; they are imported when first used, so `import potluck` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from potluck.job import Job, Pad
    from potluck.model.empty import empty_weights
    from potluck.optimizers import SGD, Adagrad, Adam, AdamW, ParamGroup, RMSprop
    from potluck.runtime.options import Options
    from potluck.runtime.run import TrainResult
    from potluck.runtime.train import train
    from potluck.schedules import Constant, Cosine, Linear, Step
    from potluck.types import DeviceSpec, Fleet, Member, Plan, Stage

_HOMES = {
    "Job": "potluck.job",
    "Pad": "potluck.job",
    "SGD": "potluck.optimizers",
    "Adam": "potluck.optimizers",
    "AdamW": "potluck.optimizers",
    "RMSprop": "potluck.optimizers",
    "Adagrad": "potluck.optimizers",
    "ParamGroup": "potluck.optimizers",
    "Constant": "potluck.schedules",
    "Cosine": "potluck.schedules",
    "Linear": "potluck.schedules",
    "Step": "potluck.schedules",
    "empty_weights": "potluck.model.empty",
    "DeviceSpec": "potluck.types",
    "Fleet": "potluck.types",
    "Member": "potluck.types",
    "Plan": "potluck.types",
    "Stage": "potluck.types",
    "Options": "potluck.runtime.options",
    "train": "potluck.runtime.train",
    "TrainResult": "potluck.runtime.train",
}

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "DeviceSpec",
    "Fleet",
    "Job",
    "Linear",
    "Member",
    "Options",
    "Pad",
    "ParamGroup",
    "Plan",
    "RMSprop",
    "Stage",
    "Step",
    "TrainResult",
    "empty_weights",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'potluck' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
