"""Flower's FedAvg, server or client: the real package, with clients that stay in memory from round to round.

It runs under a Python of its own that has flwr, torch and numpy (benchmarks/sync/peer_python.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flwr  # type: ignore[import-not-found, unused-ignore]
import numpy as np
import torch

from benchmarks.sync.flower_server import serve
from benchmarks.sync.flower_weights import Arrays, load, weights_of
from benchmarks.sync.peer_options import peer_options
from benchmarks.sync.workload import BATCH, WORKLOADS, Workload


class Client(flwr.client.NumPyClient):  # type: ignore[misc, unused-ignore]
    """Trains some steps on its own samples in every round."""

    def __init__(self, work: Workload, data: Path, steps: int, rate: float, seed: int) -> None:
        self._work, owned = work, np.load(data)
        self._inputs, self._labels = torch.from_numpy(owned["input"]), torch.from_numpy(owned["label"])
        self._steps, self._rate, self._model = steps, rate, work.make_model(seed)
        self._train(work.make_model(seed), 1, torch.Generator())  # loads kernels, changes nothing
        self._chance = torch.Generator().manual_seed(seed)

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """One round."""
        load(self._model, parameters)
        self._train(self._model, self._steps, self._chance)
        return weights_of(self._model), len(self._labels), {}

    def _train(self, model: torch.nn.Module, steps: int, chance: torch.Generator) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=self._rate)
        for _ in range(steps):
            part = torch.randint(len(self._labels), (BATCH,), generator=chance)
            optimizer.zero_grad()
            self._work.loss(model(self._inputs[part]), self._labels[part]).backward()
            optimizer.step()


def main() -> None:
    """Serves, or trains."""
    parser = peer_options()
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--start", type=Path, default=Path("start"), help="File that lets the server begin.")
    parser.add_argument("--most-s", type=float, default=120.0)
    parser.add_argument("--target", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    work = WORKLOADS[given.workload]
    if given.clients:
        serve(work, given.address, given.clients, given.start, given.data, given.seed, given.most_s, given.target)
    else:
        client = Client(work, given.data, given.steps, given.rate, given.seed)
        flwr.client.start_client(server_address=given.address, client=client.to_client(), insecure=True)


if __name__ == "__main__":
    main()
