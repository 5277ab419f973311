"""A job that took all the memory it may have, and a device that needs a thread."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import contextlib, sys, threading
from potluck.memory_limit import beyond_limit, limit_memory

limit_memory(64 * 2**20)
taken = []
for size in (2**20, 2**12):  # large pieces, then what is left between them
    with contextlib.suppress(MemoryError):
        while True:
            taken.append(bytearray(size))
with beyond_limit() if sys.argv[1] == "beyond" else contextlib.nullcontext():
    thread = threading.Thread(target=lambda: None)
    thread.start()
thread.join()
try:
    taken.append(bytearray(2**22))
except MemoryError:
    print("limited")
"""


def test_the_limit_is_back_after_several_lifted_it_at_once():
    program = """
import resource
from potluck.memory_limit import beyond_limit, limit_memory
limit_memory(2**26)
limit = resource.getrlimit(resource.RLIMIT_DATA)
first, second = beyond_limit(), beyond_limit()
first.__enter__()
second.__enter__()
first.__exit__(None, None, None)
assert resource.getrlimit(resource.RLIMIT_DATA) != limit, "the second still needs it"
second.__exit__(None, None, None)
assert resource.getrlimit(resource.RLIMIT_DATA) == limit
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def _run(how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, timeout=60)


def test_a_thread_starts_where_the_job_took_all_that_it_may_and_the_limit_holds_afterwards():
    assert _run("beyond").stdout == "limited\n"


def test_without_more_no_thread_could_start():
    assert "can't start new thread" in _run("within").stderr
