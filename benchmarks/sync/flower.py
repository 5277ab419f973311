"""Flower's FedAvg, server or client: the real package, with clients that stay in memory from round to round.

It runs under a Python of its own that has flwr, torch and numpy (benchmarks/sync/peer_python.py).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import flwr  # type: ignore[import-not-found, unused-ignore]
import numpy as np
import torch

from benchmarks.sync.peer_options import peer_options
from benchmarks.sync.workload import BATCH, WORKLOADS, Workload

Arrays = list[Any]


def weights_of(model: torch.nn.Module) -> Arrays:
    """The weights as Flower carries them."""
    return [tensor.numpy() for tensor in model.state_dict().values()]


def load(model: torch.nn.Module, weights: Arrays) -> None:
    """Takes such weights."""
    names = model.state_dict().keys()
    model.load_state_dict({n: torch.from_numpy(np.copy(w)) for n, w in zip(names, weights, strict=True)})


def serve(work: Workload, address: str, clients: int, test: Path, seed: int, most_s: float, target: float) -> None:
    """Says the held-out loss after every round, until it is low enough."""
    held_out = np.load(test)
    inputs, labels = torch.from_numpy(held_out["input"]), torch.from_numpy(held_out["label"])
    model, began = work.make_model(seed), 0.0

    def evaluate(round: int, weights: Arrays, config: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        nonlocal began
        load(model, weights)
        with torch.no_grad():
            loss = float(work.loss(model(inputs), labels))
        now = time.monotonic()
        began = began or now
        print(json.dumps({"round": round, "at_s": now - began, "loss": loss}), flush=True)
        if loss <= target or now - began > most_s:
            os._exit(0)  # nothing more is wanted of it
        return loss, {}

    strategy = flwr.server.strategy.FedAvg(
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=clients, min_available_clients=clients,
        evaluate_fn=evaluate, initial_parameters=flwr.common.ndarrays_to_parameters(weights_of(model)),
    )  # fmt: skip
    flwr.server.start_server(
        server_address=address, config=flwr.server.ServerConfig(num_rounds=10**6), strategy=strategy
    )


class Client(flwr.client.NumPyClient):  # type: ignore[misc, unused-ignore]
    """Trains some steps on its own samples in every round."""

    def __init__(self, work: Workload, data: Path, steps: int, rate: float, seed: int) -> None:
        self._work, owned = work, np.load(data)
        self._inputs, self._labels = torch.from_numpy(owned["input"]), torch.from_numpy(owned["label"])
        self._steps, self._rate, self._model = steps, rate, work.make_model(seed)
        self._chance = torch.Generator().manual_seed(seed)

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """One round."""
        load(self._model, parameters)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=self._rate)
        for _ in range(self._steps):
            part = torch.randint(len(self._labels), (BATCH,), generator=self._chance)
            optimizer.zero_grad()
            self._work.loss(self._model(self._inputs[part]), self._labels[part]).backward()
            optimizer.step()
        return weights_of(self._model), len(self._labels), {}


def main() -> None:
    """Serves, or trains."""
    parser = peer_options()
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--most-s", type=float, default=120.0)
    parser.add_argument("--target", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    work = WORKLOADS[given.workload]
    if given.clients:
        serve(work, given.address, given.clients, given.data, given.seed, given.most_s, given.target)
    else:
        client = Client(work, given.data, given.steps, given.rate, given.seed)
        flwr.client.start_client(server_address=given.address, client=client.to_client(), insecure=True)


if __name__ == "__main__":
    main()
