"""The plain PyTorch loop: what the uncut program must equal when nothing is random."""

from __future__ import annotations

from dataclasses import replace

import torch

from potluck.commands.verifying import run_uncut
from potluck.coordinator.samples.loading import training_loader
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.model.forms import LABEL, call_model
from potluck.plan.routes import micro_batch_sizes
from potluck.types import Member, Plan, Stage
from tests.models.case import Case


def eager_difference(case: Case, prepared: PreparedJob) -> tuple[str, ...]:
    """Names of tensors whose bits differ between the uncut program and the eager module, after the job's rounds."""
    job = prepared.job
    model = case.make_model().train()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9, foreach=False
    )
    loader = training_loader(job)
    try:
        for round in range(loader.order.rounds):
            batch = loader.get(round)
            optimizer.zero_grad()
            start, total = 0, float(batch.weights.sum())
            for size in micro_batch_sizes(len(batch.ids), job.micro_batch):
                rows = slice(start, start + size)
                feeds = {n: t[rows] for n, t in batch.feeds.items() if n != LABEL}
                loss = job.loss(call_model(model, feeds), batch.feeds[LABEL][rows])
                loss.backward(torch.full_like(loss, float(batch.weights[rows].sum()) / total))
                start += size
            optimizer.step()
    finally:
        loader.close()
    blocks = prepared.built.programs.train.block_count
    alone = Stage(blocks=(0, blocks), group=(Member(device="one", share=4),))
    plan = Plan(micro_batch_size=job.micro_batch, micro_batches=4, stages=(alone,))
    plain = replace(prepared.built, programs=prepared.built.programs.with_kernels("torch"))
    reference, _ = run_uncut(replace(prepared, built=plain), plan, lanes=False)
    held = reference.stage.state()
    expected = model.state_dict()
    got = {**held.parameters, **held.buffers}
    return tuple(n for n, t in got.items() if not torch.equal(t, expected[n]))
