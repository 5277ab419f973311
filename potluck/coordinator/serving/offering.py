"""What devices fetch before they train around a parameter server: program, first weights, and maybe samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from safetensors.torch import save

from potluck.coordinator.samples.loading import first_samples, share
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.program.program import encode
from potluck.tensors.snapshot import separate
from potluck.wire.control_channel import ControlServer
from potluck.wire.messages import FeedSpec, FromAgent, FromCoordinator, Load


class Offering:
    """Blobs by their digests, and the order that names them."""

    def __init__(
        self, server: ControlServer[FromAgent, FromCoordinator], prepared: PreparedJob, run: str,
        began_with: Sequence[str], parts: int,
    ) -> None:  # fmt: skip
        """`began_with` are the devices that began the run, if it goes on, and `parts` how many share the data."""
        self._server, self._prepared, self._run, self._parts = server, prepared, run, parts
        self._shares = {device: part for part, device in enumerate(began_with)}
        server.offer(prepared.facts.digest, encode(prepared.built.programs))
        self._state = self._offered(save(separate(prepared.built.state)))
        first = first_samples(prepared.job, 2).feeds
        self._feeds = {n: FeedSpec(tuple(t.shape[1:]), str(t.dtype).removeprefix("torch.")) for n, t in first.items()}

    def order(self, device: str) -> Load:
        """What a device is told to get ready."""
        job, data = self._prepared.job, self._prepared.job.data
        return Load(
            run=self._run, program=self._prepared.facts.digest, state=self._state,
            optimizer=self._prepared.optimizer, batch_size=job.batch_size, seed=job.seed, clip_norm=job.clip_norm,
            feeds=self._feeds, data=data if isinstance(data, str) else "",
            share="" if isinstance(data, str) else self._share(device),
        )  # fmt: skip

    def _share(self, device: str) -> str:
        """A part of the coordinator's own data; who comes back gets the same one again."""
        part = self._shares.setdefault(device, len(self._shares))
        return self._offered(save(separate(share(self._prepared.job, part % self._parts, self._parts))))

    def _offered(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._server.offer(digest, data)
        return digest
