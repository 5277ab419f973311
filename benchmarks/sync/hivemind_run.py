"""hivemind on the testbed: a peer on every device, its weights judged as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.sync.runs import START_S, Course, Setting
from benchmarks.sync.workload import WORKLOADS
from benchmarks.testbed import Testbed
from benchmarks.testbed.agents import environment
from benchmarks.throughput.others import unhurried

LOOK_S = 0.05


def hivemind_course(
    bed: Testbed, python: Path, shards: Path, folder: Path, targets: Sequence[float], setting: Setting, most_s: float
) -> Course:
    """Until the last target is reached, or for so long; counted from when all peers are ready."""
    folder.mkdir(parents=True)
    found = Course()
    env = environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    shared = ["--rate", str(setting.rate), "--seed", str(setting.seed), "--workload", setting.workload]
    with (folder / "hivemind.log").open("ab") as log:
        try:
            with unhurried(bed):
                for number, device in enumerate(bed.devices):
                    command = [str(python), "-W", "ignore", "-m", "benchmarks.sync.hivemind_peer", *shared]
                    command += ["--address", bed.address(device), "--folder", str(folder), "--number", str(number)]
                    command += ["--peers", str(len(bed.devices)), "--data", f"{shards / device}.npz"]
                    bed.start(device, command, env=env, stdout=log, stderr=log)
                if not _until(lambda: len(list(folder.glob("ready-*"))) == len(bed.devices), START_S):
                    found.problem = f"not all peers were ready in {START_S:.0f} s"
            if not found.problem:
                _judge(folder, shards / "test.npz", found, min(targets), setting, most_s)
        finally:
            for device in bed.devices:
                bed.kill(device)
    found.reached_s = [next((at for at, loss in found.curve if loss <= target), None) for target in targets]
    found.problem = found.problem or ("" if found.curve else "no weights came")
    return found


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


def _judge(folder: Path, test: Path, found: Course, target: float, setting: Setting, most_s: float) -> None:
    """The loss of every file of weights, at the moment at which it was written."""
    held_out, work = np.load(test), WORKLOADS[setting.workload]
    inputs, labels = torch.from_numpy(held_out["input"]), torch.from_numpy(held_out["label"])
    model, seen = work.make_model(setting.seed), set[Path]()
    (folder / "start").touch()
    began, deadline = time.time(), time.monotonic() + most_s
    while time.monotonic() < deadline:
        for path in sorted(set(folder.glob("weights-*.npz")) - seen):
            seen.add(path)
            weights = np.load(path)
            model.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights.files})
            with torch.no_grad():
                found.curve.append((path.stat().st_mtime - began, float(work.loss(model(inputs), labels))))
            found.pushes = len(seen)
            if found.curve[-1][1] <= target:
                return
        time.sleep(LOOK_S)
