"""What to say where an optimizer is to train with gradients that are one step late, and does not bear that well."""

from __future__ import annotations

from potluck.job.optimizers import SGD, Muon, NAdam, Optimizer

# Losses at the end, in lock-step and one step late, by rows of benchmarks/results/delay.json. "digits" is the job of
# `potluck demo`, "text" a small language model.
MEASURED = {
    ("digits", "SGD"): (0.137, 0.245),
    ("digits", "SGD, momentum 0.9"): (0.057, 0.502),
    ("digits", "SGD, momentum 0.9, feedback 1"): (0.048, 0.253),
    ("digits", "SGD, Nesterov 0.9"): (0.050, 0.255),
    ("digits", "Adam"): (0.035, 0.178),
    ("digits", "AdamW"): (0.034, 0.177),
    ("digits", "AdamW, feedback 1"): (0.053, 0.099),
    ("digits", "NAdam"): (0.046, 0.109),
    ("digits", "RMSprop"): (0.086, 0.333),
    ("digits", "Adagrad"): (0.095, 0.355),
    ("text", "Muon"): (2.132, 2.336),
    ("text", "Muon, feedback 1"): (2.167, 2.251),
}
_NADAM = f"potluck.NAdam ({MEASURED['digits', 'NAdam'][1]:.2f})"


def late_gradients_advice(optimizer: Optimizer, staleness: int) -> str:
    """One line that names the measured gap and what to take instead; "" where there is nothing to say."""
    if not staleness or isinstance(optimizer, NAdam) or optimizer.feedback:
        return ""
    job, row = _measured_row(optimizer)
    in_time, late = MEASURED[job, row]
    return (
        f"optimizer {row}: gradients are one step late here, which costs it (loss on {job} {late:.2f}, "
        f"in lock-step {in_time:.2f}); {_instead(optimizer)}"
    )


def _measured_row(optimizer: Optimizer) -> tuple[str, str]:
    """The row whose optimizer is most like this one."""
    match optimizer:
        case Muon():
            return "text", "Muon"
        case SGD(nesterov=True):
            return "digits", "SGD, Nesterov 0.9"
        case SGD(momentum=momentum) if momentum:
            return "digits", "SGD, momentum 0.9"
    return "digits", type(optimizer).__name__


def _instead(optimizer: Optimizer) -> str:
    if isinstance(optimizer, Muon):
        return f"give it feedback=1.0 ({MEASURED['text', 'Muon, feedback 1'][1]:.2f}), and to its rest too"
    corrected = "AdamW, feedback 1"
    if isinstance(optimizer, SGD):
        if not optimizer.momentum:
            return f"take {_NADAM}"
        corrected = "SGD, momentum 0.9, feedback 1"
    after = MEASURED["digits", corrected][1]
    return f"take {_NADAM} or give it feedback=1.0 ({corrected.partition(',')[0]} with it: {after:.2f})"
