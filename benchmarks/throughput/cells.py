"""Which models are trained on which fleets by which systems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.workloads import BATCH, WORKLOADS

FLEETS = Path(__file__).parents[1] / "fleets"
OURS = "potluck"
DDP, PIPELINING = "ddp", "pipelining"
ONE_F_ONE_B, GPIPE = f"{PIPELINING}-1f1b", f"{PIPELINING}-gpipe"
PEERS = (DDP, ONE_F_ONE_B, GPIPE)
HYBRID = ("pipedream", "dapple", "hetpipe")
PLANNERS = ("single", "data-parallel", "gpipe", "1f1b", "eddl", "ftpipehd", *HYBRID, "asteroid")
LEAST_BATCH = 120  # batches are multiples of it: most sizes of micro-batches divide it
IDEAL_S = 6.0  # of each burst of plain trainers
TRY_PLAN_S = 5.0
MICRO_BATCHES = (8, 12, 16, 24, 30, 40, 60, 80, 120, 240)  # sizes that every planner may choose from


@dataclass(frozen=True)
class Cell:
    """A model on a fleet."""

    fleet: str
    model: str
    batch: int = BATCH

    @property
    def fleet_file(self) -> Path:
        """Where its devices are described."""
        return FLEETS / f"{self.fleet}.toml"

    @property
    def name(self) -> str:
        """The fleet, and the batch where it is not the usual one."""
        return self.fleet if self.batch == BATCH else f"{self.fleet}/{self.batch}"

    @property
    def word(self) -> str:
        """What chooses it on the command line."""
        return f"{self.name}:{self.model}"


@dataclass(frozen=True)
class Bench:
    """What one run of the benchmark measures."""

    cells: tuple[Cell, ...]
    planners: tuple[str, ...]  # beside ours, on our runtime
    peers: tuple[str, ...]
    repeats: int
    seconds: float  # each measurement of a plan or of a rival aims at
    pipelining_sizes: tuple[int, ...]  # of micro-batches to choose from, by trying them
    ideal_s: float  # of each burst of plain trainers
    try_plan_s: float  # how long each plan that is tried is looked for; `potluck train` takes 2 s
    all_in_little_memory: bool  # or only the first cell of those whose lines alone differ


QUICK = Bench(
    cells=tuple(Cell(f, m) for f in ("lab-1000", "lab-100") for m in ("mobilenet_v2", "resnet50")),
    planners=("asteroid",),  # the best other of these cells whenever more were measured
    peers=(DDP,),
    repeats=1,
    seconds=6.0,
    pipelining_sizes=(16,),
    ideal_s=4.0,
    try_plan_s=3.0,
    all_in_little_memory=False,
)
_FLEETS = ("lab-1000", "lab-100", "nanos-1000", "nanos-100", "tenfold-1000", "tenfold-100", "rooms")
FULL = Bench(
    cells=(*(Cell(f, m) for f in _FLEETS for m in WORKLOADS), Cell("lab-1000", "mobilenet_v2", 120)),
    planners=PLANNERS,
    peers=PEERS,
    repeats=3,
    seconds=12.0,
    pipelining_sizes=(8, 16, 24, 40),
    ideal_s=IDEAL_S,
    try_plan_s=TRY_PLAN_S,
    all_in_little_memory=True,
)


def micro_batches(batch: int) -> list[tuple[int, int]]:
    """Sizes and counts of micro-batches that make up a batch."""
    return [(size, batch // size) for size in MICRO_BATCHES if batch % size == 0]
