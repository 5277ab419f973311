"""Asynchronous: everybody pushes after each step, and nobody waits."""

from __future__ import annotations

from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_values import plain

FACTORY = plain(Policy)
