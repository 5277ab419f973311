"""The command line: each verb calls one function."""

from __future__ import annotations

import click


@click.group()
def main() -> None:
    """Train one PyTorch model on the devices you already have."""


@main.command()
@click.argument("address")
@click.option("--name", required=True)
@click.option("--device", default="cpu")
@click.option("--speed", default=1.0)
@click.option("--memory", default="0")
@click.option("--threads", default=1)
def join(address: str, name: str, device: str, speed: float, memory: str, threads: int) -> None:
    from potluck.runtime.agent import run_agent
    from potluck.types import DeviceSpec

    raise SystemExit(run_agent(address, DeviceSpec(name=name, kind=device, speed=speed, memory_bytes=int(memory), threads=threads), "127.0.0.1"))
