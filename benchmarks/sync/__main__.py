"""How soon does each policy reach a loss, and does anybody wait?

    python -m benchmarks.sync --quick --json

Three workers at 1 : 1.2 : 0.33 and 100 Mbit/s, each with samples of its own, on a testbed (needs root, see
docs/testbed.md, and `apt-get install dataset-fashion-mnist`). Targets are the losses that one process reaches after 1,
2 and 4 epochs. Policies in which nobody waits run first; the others then get three times as long as those took to the
middle target (BSP 4.4 times), and where they did not get there, ratios say how much longer they take at least. Flower
takes part, and hivemind with `--peer hivemind`; each gets a Python of its own (benchmarks/sync/peer_python.py).
A quick run takes at most 15 minutes, once those are there; left_out: policies for which there was no time.
`--seeds` and `--search` ask for more than that.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from benchmarks.sync.chart import chart
from benchmarks.sync.fashion import FashionMissing
from benchmarks.sync.peer_python import PACKAGES, PeerMissing, peer_python
from benchmarks.sync.race import POLICIES, Asked, race
from benchmarks.sync.workload import NAME, WORKLOADS
from benchmarks.testbed import TestbedMissing, check_machine, ended_by_signals
from benchmarks.time_limit import QUICK_S, TimeLimit


@click.command()
@click.option("--quick", is_flag=True, help="One seed, one learning rate, fewer samples: at most 15 minutes.")
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default=NAME, show_default=True)
@click.option("--seeds", type=click.IntRange(1), help="How often.  [default: 1 in a quick run, else 3]")
@click.option("--policy", "policies", multiple=True, type=click.Choice(POLICIES), help="Only these; may be repeated.")
@click.option("--dirichlet", type=click.FloatRange(0, min_open=True), help="Unequal shards: each label by such parts.")
@click.option("--search/--no-search", default=None, help="For a learning rate.  [default: in a full run only]")
@click.option("--fleet", default="three-100", show_default=True, help="Of benchmarks/fleets.")
@click.option("--most-s", type=float, help="Longest run of a policy.  [default: 300, 600 in a full run]")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice([*PACKAGES, "none"]),
    default=("flower",),
    show_default=True,
    help="Programs beside ours, installed on first use; may be repeated.",
)
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and picture.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(
    quick: bool, workload: str, seeds: int | None, policies: tuple[str, ...], dirichlet: float | None,
    search: bool | None, fleet: str, most_s: float | None, peers: tuple[str, ...], results: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Races policies. Example: python -m benchmarks.sync --quick --policy ours --policy bsp"""
    ended_by_signals()
    if dirichlet is not None and workload != NAME:
        raise click.UsageError(f"--dirichlet is for samples with one label each: give --workload {NAME}")
    try:
        check_machine()
        asked = Asked(
            quick, workload, fleet, policies or POLICIES, seeds or (1 if quick else 3), dirichlet,
            not quick if search is None else search, most_s or (300.0 if quick else 600.0),
            {peer: peer_python(peer) for peer in peers if peer != "none"},
        )  # fmt: skip
        hurried = quick and asked.seeds == 1 and not asked.search
        limit = TimeLimit(QUICK_S if hurried else None)
        found = race(asked, limit)
    except (TestbedMissing, FashionMissing, PeerMissing) as error:
        raise click.ClickException(str(error)) from None
    for key, value in found.items():
        if key != "curves":
            print(f"{key}: {value}")
    if limit.words:
        print(limit.words)
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        name = _name(asked)
        (results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        (results / f"{name}.svg").write_text(chart(found["curves"], found["targets"]))
    if as_json:
        print(json.dumps(found))


def _name(asked: Asked) -> str:
    """Of the files."""
    words = ["sync-quick" if asked.quick else "sync", asked.fleet]
    words += [asked.workload] if asked.workload != NAME else []
    words += [f"dirichlet-{asked.dirichlet:g}"] if asked.dirichlet else []
    return "-".join(words)


if __name__ == "__main__":
    main()
