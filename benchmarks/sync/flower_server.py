"""Flower's server: FedAvg from the moment at which all clients are there and ready, judged in the background."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import flwr  # type: ignore[import-not-found, unused-ignore]
import numpy as np
import torch

from benchmarks.sync.await_file import READY, await_file
from benchmarks.sync.flower_weights import load, weights_of
from benchmarks.sync.judging import Judging
from benchmarks.sync.workload import Workload


class Watched(flwr.server.strategy.FedAvg):  # type: ignore[misc, unused-ignore]
    """FedAvg that does not judge weights itself: rounds go on while somebody else does."""

    def __init__(self, race: Race, **options: Any) -> None:
        super().__init__(**options)
        self._race = race

    def evaluate(self, server_round: int, parameters: Any) -> None:
        """Flower calls this with the weights of every round, and before the first."""
        if server_round == 0:
            self._race.begin()
        self._race.made(server_round, parameters)


class Race:
    """Says the held-out loss of rounds, until it is low enough or time is up."""

    def __init__(
        self, work: Workload, manager: Any, clients: int, start: Path, test: Path, most_s: float, target: float
    ) -> None:
        self._work, self._manager, self._clients, self._start = work, manager, clients, start
        self._most_s, self._target, self._began = most_s, target, 0.0
        held_out = np.load(test)
        self._inputs, self._labels = torch.from_numpy(held_out["input"]), torch.from_numpy(held_out["label"])
        self._model = work.make_model(0)
        self._judging = Judging[Any](self._judge)

    def begin(self) -> None:
        """The clock starts once all clients are there, who come when they are warm, and devices have their quotas."""
        self._manager.wait_for(self._clients)
        print(READY, flush=True)
        await_file(self._start)
        self._began = time.monotonic()

    def made(self, round: int, parameters: Any) -> None:
        """The weights of a round exist from now on."""
        at_s = time.monotonic() - self._began
        if at_s > self._most_s:
            self._judging.finish()
            os._exit(0)  # nothing more is wanted of it
        self._judging.put(round, at_s, parameters)

    def _judge(self, round: int, at_s: float, parameters: Any) -> None:
        load(self._model, flwr.common.parameters_to_ndarrays(parameters))
        with torch.no_grad():
            loss = float(self._work.loss(self._model(self._inputs), self._labels))
        print(json.dumps({"round": round, "at_s": at_s, "loss": loss}), flush=True)
        if loss <= self._target:
            os._exit(0)


def serve(
    work: Workload, address: str, clients: int, start: Path, test: Path, seed: int, most_s: float, target: float
) -> None:
    """Says that it is ready, waits for the file `start`, and trains."""
    manager = flwr.server.SimpleClientManager()
    strategy = Watched(
        Race(work, manager, clients, start, test, most_s, target),
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=clients, min_available_clients=clients,
        initial_parameters=flwr.common.ndarrays_to_parameters(weights_of(work.make_model(seed))),
    )  # fmt: skip
    flwr.server.start_server(
        server_address=address, config=flwr.server.ServerConfig(num_rounds=10**6), strategy=strategy,
        client_manager=manager,
    )  # fmt: skip
