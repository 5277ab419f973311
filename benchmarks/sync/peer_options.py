"""What every peer that trains is told. For Pythons of their own, which need not have more than argparse."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.sync.workload import NAME, WORKLOADS


def peer_options() -> argparse.ArgumentParser:
    """A parser with the options that all of them have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workload", choices=list(WORKLOADS), default=NAME)
    return parser
