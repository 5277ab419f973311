"""The job that workers train: what the environment says. See `benchmarks/sync/runs.py`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

import potluck
from benchmarks.sync.workload import BATCH, WORKLOADS

held_out = np.load(Path(os.environ["SYNC_TEST"]))
work = WORKLOADS[os.environ["SYNC_WORKLOAD"]]
seed = int(os.environ["SYNC_SEED"])

job = potluck.Job(
    model=lambda: work.make_model(seed), loss=work.loss,
    optimizer=potluck.SGD(lr=float(os.environ["SYNC_RATE"])), data="own",
    eval_data=(torch.from_numpy(held_out["input"]), torch.from_numpy(held_out["label"])), batch_size=BATCH,
    eval_every=int(os.environ["SYNC_EVERY"]), epochs=1000, checkpoint_every=10**9, seed=seed,
)  # fmt: skip
