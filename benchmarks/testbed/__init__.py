"""Real processes on emulated devices: namespaces, lines of a given bandwidth, CPU quotas, memory limits (docs/testbed.md)."""

from benchmarks.testbed.bed import Testbed, check_machine
from benchmarks.testbed.errors import TestbedError, TestbedMissing

__all__ = ["Testbed", "TestbedError", "TestbedMissing", "check_machine"]
