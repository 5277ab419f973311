"""Policies by the names that users give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from potluck.paramserver.adacomm import AdaComm
from potluck.paramserver.adsp import Adsp, Ours
from potluck.paramserver.policy import Bsp, Lockstep, Policy, Ssp

POLICIES: Mapping[str, Callable[[], Policy]] = {
    cls.name: cls for cls in (Bsp, Ssp, Policy, Lockstep, AdaComm, Adsp, Ours)
}
