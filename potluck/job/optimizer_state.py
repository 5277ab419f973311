"""What an optimizer keeps of each parameter: tensors shaped like it, which need memory, and single numbers."""

from __future__ import annotations

from potluck.job.optimizers import SGD, Adagrad, Adam, AdamW, Muon, NAdam, Optimizer, RMSprop

LAST_GRADIENT = "last_gradient"  # the slot of `feedback`


def slot_names(spec: Optimizer, overrides: dict[str, float] | None = None) -> tuple[str, ...]:
    """State tensors, shaped like their parameter, that the optimizer keeps for each parameter of a group."""
    return (*_torch_slots(spec, overrides or {}), *((LAST_GRADIENT,) if spec.feedback else ()))


def _torch_slots(spec: Optimizer, overrides: dict[str, float]) -> tuple[str, ...]:
    momentum = overrides.get("momentum", getattr(spec, "momentum", 0.0))
    match spec:
        case SGD():
            return ("momentum_buffer",) if momentum else ()
        case Muon():
            return ("momentum_buffer",)
        case Adam() | AdamW():
            return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if spec.amsgrad else ()))
        case NAdam():
            return ("exp_avg", "exp_avg_sq")
        case RMSprop():
            return (
                "square_avg",
                *(("momentum_buffer",) if momentum > 0 else ()),
                *(("grad_avg",) if spec.centered else ()),
            )
        case Adagrad():
            return ("sum",)


def counter_names(spec: Optimizer) -> tuple[str, ...]:
    """What the optimizer keeps besides, for each parameter: one number each, which torch has on the CPU."""
    match spec:
        case SGD() | Muon():
            return ()
        case NAdam():
            return ("step", "mu_product")
    return ("step",)


def slots(spec: Optimizer) -> int:
    """State tensors per trainable parameter; the most of any group."""
    most = max(len(slot_names(spec, overrides)) for overrides in ({}, *(g.overrides for g in spec.groups)))
    return max(most, slots(spec.rest)) if isinstance(spec, Muon) else most
