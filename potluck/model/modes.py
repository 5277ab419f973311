"""Which modules are in training mode and which in evaluation: as the user left them, whatever is tried in between."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from potluck.errors import ModelError


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards every module is in the mode it was in. `train()` alone would thaw what was frozen by `eval()`."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        model.train(modes[model])  # one of the user's own may do more than set modes
        for module, training in modes.items():
            module.training = training


def switch_to_training(model: nn.Module) -> None:
    """The modes in which a plain loop trains: `train()` is called, but what came switched off in a model stays off.

    A model of which all is switched off is switched on. One that is switched off but for some parts may be meant
    either way, so it is refused.
    """
    active = {module: name for name, module in model.named_modules() if module.training}
    if active and not model.training:
        raise ModelError(
            f"the model is in evaluation mode, but {next(iter(active.values()))!r} in it is in training mode; "
            "call model.train() to train all of it, or set model.training = True to keep the mode of every part"
        )
    model.train()
    if active:
        for module in model.modules():
            module.training &= module in active
