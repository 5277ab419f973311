"""Real processes on emulated devices: namespaces, bandwidths, CPU quotas and memory limits (docs/testbed.md)."""

from benchmarks.testbed.agents import coordinator_address, join_all, start_potluck
from benchmarks.testbed.bed import Testbed, check_machine
from benchmarks.testbed.errors import TestbedError, TestbedMissing

__all__ = [
    "Testbed",
    "TestbedError",
    "TestbedMissing",
    "check_machine",
    "coordinator_address",
    "join_all",
    "start_potluck",
]
