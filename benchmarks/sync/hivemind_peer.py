"""A peer of hivemind: trains on its own samples, and averages weights with the others in the background.

It runs under a Python of its own that has hivemind, torch and numpy (benchmarks/sync/peer_python.py).

Weights are averaged whenever all peers together have trained `--steps` batches each, as in local SGD; who is faster
trains more of them. The first peer writes what they agreed on to a file after every averaging, for whoever judges it.
"""

from __future__ import annotations

import functools
from pathlib import Path

import hivemind  # type: ignore[import-not-found, unused-ignore]
import numpy as np
import torch

from benchmarks.sync.await_file import await_file
from benchmarks.sync.peer_options import peer_options
from benchmarks.sync.workload import BATCH, WORKLOADS


def connected(place: Path, address: str, first: bool) -> hivemind.DHT:
    """The network of peers: the first one says where it is, the others go there."""
    if not first:
        await_file(place)
    known = [] if first else place.read_text().split()
    found = hivemind.DHT(host_maddrs=[f"/ip4/{address}/tcp/0"], initial_peers=known, start=True)
    if first:
        part = place.with_suffix(".part")
        part.write_text("\n".join(str(where) for where in found.get_visible_maddrs()))
        part.rename(place)
    return found


def main() -> None:
    """Trains until it is killed."""
    parser = peer_options()
    parser.add_argument("--folder", type=Path, required=True, help="Where peers meet, and weights go.")
    parser.add_argument("--number", type=int, required=True, help="Of this peer; 0 is the first.")
    parser.add_argument("--peers", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    work, owned = WORKLOADS[given.workload], np.load(given.data)
    inputs, labels = torch.from_numpy(owned["input"]), torch.from_numpy(owned["label"])
    model, chance = work.make_model(given.seed), torch.Generator().manual_seed(given.seed + given.number)
    work.loss(work.make_model(0)(inputs[:BATCH]), labels[:BATCH]).backward()  # loads kernels
    optimizer = hivemind.Optimizer(
        dht=connected(given.folder / "peers", given.address, given.number == 0), run_id="race",
        batch_size_per_step=BATCH, target_batch_size=given.steps * BATCH * given.peers,
        optimizer=functools.partial(torch.optim.SGD, lr=given.rate), params=list(model.parameters()),
        use_local_updates=True, matchmaking_time=1.0, averaging_timeout=30.0,
    )  # fmt: skip
    (given.folder / f"ready-{given.number}").touch()
    await_file(given.folder / "start")
    epoch, averaged = 0, None
    while True:
        part = torch.randint(len(labels), (BATCH,), generator=chance)
        work.loss(model(inputs[part]), labels[part]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if averaged is not None and given.number == 0:
            write(given.folder, averaged, model, optimizer)
        # An epoch counts from when averaging begins, in the background. The next step waits for its end.
        before, epoch = epoch, optimizer.local_epoch
        averaged = epoch if epoch != before else None


def write(folder: Path, epoch: int, model: torch.nn.Module, optimizer: hivemind.Optimizer) -> None:
    """The average of the peers' weights: a peer's own have a step more in them."""
    part = folder / "weights.part"
    with part.open("wb") as file, optimizer.state_averager.get_tensors() as agreed:
        own = {name: tensor.numpy() for name, tensor in model.state_dict().items()}  # with what is no parameter
        names = [name for name, _ in model.named_parameters()]
        np.savez(file, **own | {name: tensor.numpy() for name, tensor in zip(names, agreed, strict=True)})
    part.rename(folder / f"weights-{epoch:06d}.npz")


if __name__ == "__main__":
    main()
