"""Starts agents as processes on this machine, with emulated speed and memory, and ends every one of them again."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from potluck.datasets.own_data import for_device
from potluck.types import DeviceSpec
from potluck.wire.messages import PROOF_VARIABLE

_GRACE_S = 5.0  # for a process to end by itself before it is killed: it says goodbye and closes its link
_LAST_BYTES = 64 * 1024  # of a log, in which its last line is


class LocalAgents:
    """Agent processes of this machine; a context that never leaves one behind."""

    def __init__(self, devices: Sequence[DeviceSpec], address: str, data: Sequence[str] = ()) -> None:
        """`data` are NAME=PATH of data sets that each owns; {device} in them stands for its name."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # In the environment, which other users cannot read, and not in the arguments, which they can.
        self.proofs = {spec.name: secrets.token_hex(16) for spec in devices}
        self._logs: dict[str, IO[bytes]] = {}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        try:
            for spec in devices:
                log = self._log(spec.name)
                command = [sys.executable, "-m", "potluck", "join", address, "--name", spec.name, "--device", spec.kind]
                command += [
                    "--speed",
                    repr(spec.speed),
                    "--memory",
                    str(spec.memory_bytes),
                    "--threads",
                    str(spec.threads),
                ]
                for named in data:
                    command += ["--data", for_device(named, spec.name)]
                environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(spec.threads)
                environment[PROOF_VARIABLE] = self.proofs[spec.name]
                self.processes[spec.name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
                    start_new_session=True,
                )  # fmt: skip
        except BaseException:
            self.close(_GRACE_S)
            raise

    def _log(self, name: str) -> IO[bytes]:
        """A file without a name: nothing is left of it, however this process ends."""
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._logs[name] = log
        return log

    def __enter__(self) -> LocalAgents:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(_GRACE_S if kind is None else 0.5)

    def died(self) -> dict[str, str]:
        """Those that have ended, and what they last said."""
        ended = {name: process.poll() for name, process in self.processes.items()}
        return {
            name: f"device {name} was ended by signal {-code}"
            if code < 0
            else f"device {name} ended with code {code}: {self.last_line(name)}"
            for name, code in ended.items()
            if code is not None
        }

    def last_line(self, name: str) -> str:
        """The last thing a device said."""
        log = self._logs[name].fileno()
        # The device writes where this file stands, so it must not be moved by reading.
        end = os.pread(log, _LAST_BYTES, max(0, os.fstat(log).st_size - _LAST_BYTES))
        lines = [line.strip() for line in end.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def close(self, grace_s: float) -> None:
        """Waits a little for them to end, then ends them."""
        deadline = time.monotonic() + grace_s
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        for process in self.processes.values():
            process.wait()
        for log in self._logs.values():
            log.close()
