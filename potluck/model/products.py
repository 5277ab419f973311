"""Products of matrices, by the library that is fastest on this processor.

PyTorch hands those of float32 to MKL, which leaves half of each vector unused on processors with 512 bits that are not
Intel's. oneDNN, which PyTorch has too, uses all of it and takes half the time, whichever way the matrices lie.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

_FEW = 4  # rows: with as many, MKL reads the weights once too, and begins sooner
_CPUINFO = Path("/proc/cpuinfo")


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The first matrix times the second."""
    return times_transposed(a, b.t())


def times_transposed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Each row of the first matrix by each row of the second, and the bias; for inference, as it gives no gradients."""
    if not (by_onednn(x.device) and x.dtype is torch.float32 and x.numel() and weight.numel()) or len(x) <= _FEW:
        return torch.nn.functional.linear(x, weight, bias)
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
        _compact(x), _compact(weight), bias, "none", [], ""
    )
    return found


def _compact(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its rows or its columns one after another: for what has gaps, oneDNN has no fast kernel."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def by_onednn(device: torch.device) -> bool:
    """Whether oneDNN is the faster one for products on this device."""
    return device.type == "cpu" and _is_faster_here()


@cache
def _is_faster_here() -> bool:
    wide = platform.machine().lower() in ("x86_64", "amd64") and torch.backends.cpu.get_cpu_capability() == "AVX512"
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return wide and known and _vendor(_CPUINFO) not in ("GenuineIntel", "")


def _vendor(cpuinfo: Path) -> str:
    """Who made the processor; "" if nobody says."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    told = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in told if key.strip() == "vendor_id"), "")
