"""Train one PyTorch model on the devices you already have.

The names below are the public API; they are imported when first used, so `import potluck` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from potluck.commands.training_job import train
    from potluck.coordinator.options import Options
    from potluck.coordinator.training import TrainResult
    from potluck.job.job import Job, Pad
    from potluck.job.learning_rates import Constant, Cosine, Linear, Step
    from potluck.job.optimizers import SGD, Adagrad, Adam, AdamW, Muon, NAdam, ParamGroup, RMSprop
    from potluck.model.empty import empty_weights
    from potluck.types import DeviceSpec, Fleet, Member, Plan, Stage

_HOMES = {
    "Job": "potluck.job.job",
    "Pad": "potluck.job.job",
    "SGD": "potluck.job.optimizers",
    "Adam": "potluck.job.optimizers",
    "AdamW": "potluck.job.optimizers",
    "NAdam": "potluck.job.optimizers",
    "Muon": "potluck.job.optimizers",
    "RMSprop": "potluck.job.optimizers",
    "Adagrad": "potluck.job.optimizers",
    "ParamGroup": "potluck.job.optimizers",
    "Constant": "potluck.job.learning_rates",
    "Cosine": "potluck.job.learning_rates",
    "Linear": "potluck.job.learning_rates",
    "Step": "potluck.job.learning_rates",
    "empty_weights": "potluck.model.empty",
    "DeviceSpec": "potluck.types",
    "Fleet": "potluck.types",
    "Member": "potluck.types",
    "Plan": "potluck.types",
    "Stage": "potluck.types",
    "Options": "potluck.coordinator.options",
    "train": "potluck.commands.training_job",
    "TrainResult": "potluck.commands.training_job",
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
    "Muon",
    "NAdam",
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
        from potluck.advice import did_you_mean

        raise AttributeError(f"module 'potluck' has no attribute {name!r}; {did_you_mean(name, __all__)}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
