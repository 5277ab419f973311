"""The peers as real processes on loopback: they compute the update of a plain loop, report it, and never hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.workloads import plain, samples, sgd
from tests.process.agents import free_port

pytestmark = pytest.mark.hf

ROOT = Path(__file__).parents[2]
BATCH, ROUNDS = 12, 2
DEADLINE_S = 100.0  # a busy machine takes long to start two interpreters with torch
ONE_LOOP = [
    "--model",
    "gpt_10m",
    "--batch",
    str(BATCH),
    "--dtype",
    "float64",
    "--warm-up",
    "0",
    "--rounds",
    str(ROUNDS),
]


class Ranks:
    """Processes of one peer, ended by the test whatever happens."""

    def __init__(self, folder: Path, world_size: int, started: int, program: str, *options: str) -> None:
        port = free_port()
        self._folder = folder
        self.processes = []
        for rank in range(started):
            environment = {
                **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                "RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
            files = ["--out", str(folder / f"{rank}.json"), "--weights", str(folder / f"{rank}.safetensors")]
            command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.peers.{program}", *options, *files]
            self.processes.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
            )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def ends(self) -> list[tuple[int, str]]:
        """Exit codes and last lines of stderr."""
        texts = [process.communicate(timeout=DEADLINE_S)[1] for process in self.processes]
        return [(p.returncode, "".join(t.splitlines()[-1:])) for p, t in zip(self.processes, texts, strict=True)]

    def outcomes(self) -> list[dict[str, Any]]:
        """What the ranks wrote, once all ended well."""
        for code, line in self.ends():
            assert code == 0, line
        return [json.loads((self._folder / f"{r}.json").read_text()) for r in range(len(self.processes))]

    def weights(self) -> list[dict[str, torch.Tensor]]:
        """The parameters each rank ended with."""
        return [load_file(self._folder / f"{r}.safetensors") for r in range(len(self.processes))]


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    """The parameters after a plain loop over whole batches, in float64."""
    case = plain("gpt_10m")
    model = case.make_model().double()
    inputs, labels = samples(case, BATCH, torch.float64)
    optimizer = sgd(model)
    for number in range(ROUNDS):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        optimizer.zero_grad()
        case.loss(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return {n: p.detach() for n, p in model.named_parameters()}


def _check(outcomes: list[dict[str, Any]], world_size: int) -> None:
    for rank, outcome in enumerate(outcomes):
        assert (outcome["rank"], outcome["world_size"]) == (rank, world_size)
        assert len(outcome["round_s"]) == ROUNDS
        assert outcome["samples_per_s"] == pytest.approx(BATCH / (sum(outcome["round_s"]) / ROUNDS))
        assert 0 < outcome["cpu_s"] <= 2 * sum(outcome["round_s"]) + 1
        assert outcome["peak_rss"] > 100e6


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def _connections(pid: int) -> int:
    return sum(c.status == psutil.CONN_ESTABLISHED for c in psutil.Process(pid).net_connections("tcp"))


def _same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.full
def test_ddp_computes_the_update_of_a_plain_loop(tmp_path, expected):
    with Ranks(tmp_path, 2, 2, "ddp", *ONE_LOOP, "--micro-batches", "4") as ranks:
        _check(ranks.outcomes(), 2)
        for held in ranks.weights():
            assert held.keys() == expected.keys()
            _same(held, expected)


@pytest.mark.full
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_pipelining_computes_the_update_of_a_plain_loop(tmp_path, expected, schedule):
    with Ranks(tmp_path, 2, 2, "pipelining", *ONE_LOOP, "--schedule", schedule, "--micro-batches", "4") as ranks:
        _check(ranks.outcomes(), 2)
        first, last = ranks.weights()
        assert first.keys() | last.keys() == expected.keys()
        assert first.keys() & last.keys() == {"model.transformer.wte.weight"}  # used by both
        _same(first, expected)
        _same(last, expected)


def test_a_rank_that_waits_alone_ends_with_one_line(tmp_path):
    with Ranks(tmp_path, 2, 1, "ddp", *ONE_LOOP, "--timeout-s", "1") as ranks:
        [(code, line)] = ranks.ends()
        assert code != 0
        assert line.startswith("rank 0: ")
        assert not (tmp_path / "0.json").exists()


def test_single_waits_for_the_start_and_reports_its_best(tmp_path):
    ready, start = tmp_path / "ready", tmp_path / "start"
    options = ["--batch", "24", "--seconds", "0.2", "--trial-s", "0.1", "--micro-batches", "4,12"]
    files = ["--ready-file", str(ready), "--start-file", str(start), "--timeout-s", str(DEADLINE_S)]
    with Ranks(tmp_path, 1, 1, "single", *options, *files) as ranks:
        [process] = ranks.processes
        _wait_until(lambda: ready.exists() or process.poll() is not None)
        with pytest.raises(subprocess.TimeoutExpired):  # it waits; else it would be done by now
            process.wait(1.5)
        assert not (tmp_path / "0.json").exists()
        start.touch()
        [outcome] = ranks.outcomes()
    assert outcome["micro_batch"] in (4, 12)
    assert 1 < outcome["samples_per_s"] < 100_000
    assert outcome["round_s"] == [pytest.approx(24 / outcome["samples_per_s"])]
    assert 0 < outcome["cpu_s"] < 60


def test_cost_of_moving_tensors_is_measured_for_both_carriers():
    command = [sys.executable, "-m", "benchmarks.peers.gloo_cost", "--json", "--megabytes", "20", "--repeats", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert set(outcome["cells"]) == {"gloo_1mb", "gloo_4mb", "zmq_1mb", "zmq_4mb"}
    for cell in outcome["cells"].values():
        assert 0 < cell["cpu_s_per_gb"] == pytest.approx(cell["sender"] + cell["receiver"])
    assert 0.05 < outcome["gloo_cpu_s_per_gb"] < 100
    assert 0.05 < outcome["cpu_s_per_gb"] < 100


@pytest.mark.full
@pytest.mark.parametrize("program", ["ddp", "pipelining"])
def test_batch_norm_models_train_to_a_finite_loss(tmp_path, program):
    with Ranks(tmp_path, 2, 2, program, "--batch", "24", "--rounds", "2", "--micro-batches", "4,6") as ranks:
        outcomes = ranks.outcomes()
        losses = [o["loss"] for o in outcomes if o["loss"] is not None]
        assert 0 < sum(losses) / len(losses) < 20
        assert {o["micro_batch"] for o in outcomes} <= {4, 6}


@pytest.mark.full
@pytest.mark.parametrize("program", ["ddp", "pipelining"])
def test_the_order_of_channels_in_memory_changes_no_weight(tmp_path, program):
    options = ["--batch", "24", "--warm-up", "0", "--rounds", "1", "--micro-batches", "12", "--dtype", "float64"]
    found = []
    for more in ([], ["--channels-last"]):
        with Ranks(tmp_path, 2, 2, program, *options, *more) as ranks:
            ranks.outcomes()
            found.append(ranks.weights())
    for usual, last in zip(*found, strict=True):
        _same(last, usual)


@pytest.mark.full
def test_a_killed_rank_ends_the_others(tmp_path):
    with Ranks(tmp_path, 2, 2, "ddp", "--rounds", "1000", "--micro-batches", "8", "--timeout-s", "20") as ranks:
        _wait_until(lambda: _connections(ranks.processes[1].pid) > 0)
        ranks.processes[1].kill()
        code, line = ranks.ends()[0]
        assert code not in (0, -9)
        assert line.startswith("rank 0: ")
