"""Products of matrices, by the library that is fastest on this processor.

PyTorch hands those of float32 to MKL, which takes vectors of 256 bits on processors that are not Intel's. On AMD's of
family 26 (Zen 5), which compute with 512 bits at a time, oneDNN, which PyTorch has too, takes half as long, whichever
way the matrices lie. Others have not been measured.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

_FEW = 4  # rows: with as many, MKL reads the weights once too, and begins sooner
_LEAST = 2**20  # multiplications: for fewer, too
_VENDOR, _LEAST_FAMILY = "AuthenticAMD", 26
_CPUINFO = Path("/proc/cpuinfo")


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The first matrix times the second."""
    return times_transposed(a, b.t())


def times_transposed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Each row of the first matrix by each row of the second, and the bias; knows nothing of gradients."""
    small = len(x) <= _FEW or x.numel() * len(weight) < _LEAST
    if small or x.dtype is not torch.float32 or not by_onednn(x.device):
        return torch.nn.functional.linear(x, weight, bias)
    added = None if bias is None else bias.contiguous()  # oneDNN looks at no strides there
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
        _compact(x), _compact(weight), added, "none", [], ""
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
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return on_x86 and known and torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_wide(_CPUINFO)


def _is_wide(cpuinfo: Path) -> bool:
    """Whether the processor is one on which this was measured, or a later one."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    family = told.get("cpu family", "")
    return told.get("vendor_id") == _VENDOR and family.isdecimal() and int(family) >= _LEAST_FAMILY
