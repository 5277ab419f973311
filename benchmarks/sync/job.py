"""The job that workers train: what the environment says. See `benchmarks/sync/runs.py`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import potluck
from benchmarks.sync.fashion import BATCH, make_model

held_out = np.load(Path(os.environ["SYNC_TEST"]))
seed = int(os.environ["SYNC_SEED"])

job = potluck.Job(
    model=lambda: make_model(seed), loss=functional.cross_entropy,
    optimizer=potluck.SGD(lr=float(os.environ["SYNC_RATE"])), data="fashion",
    eval_data=(torch.from_numpy(held_out["input"]), torch.from_numpy(held_out["label"])), batch_size=BATCH,
    eval_every=int(os.environ["SYNC_EVERY"]), epochs=1000, checkpoint_every=10**9, seed=seed,
)  # fmt: skip
