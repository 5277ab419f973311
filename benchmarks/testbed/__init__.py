"""Real processes on emulated devices: namespaces, bandwidths, CPU quotas and memory limits (docs/testbed.md)."""

from benchmarks.testbed.agents import coordinator_address, join_all, start_potluck
from benchmarks.testbed.bed import Testbed, check_machine
from benchmarks.testbed.errors import TestbedError, TestbedMissing
from benchmarks.testbed.signals import ended_by_signals

__all__ = [
    "Testbed",
    "TestbedError",
    "TestbedMissing",
    "check_machine",
    "coordinator_address",
    "ended_by_signals",
    "join_all",
    "start_potluck",
]
