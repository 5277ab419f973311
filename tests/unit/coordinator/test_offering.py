"""What devices fetch before they train around a parameter server."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import torch
from safetensors.torch import load

from potluck.coordinator.serving.offering import Offering
from tests.unit.coordinator.small_job import SAMPLES, prepared


class Blobs(dict[str, bytes]):
    """A control server that only offers."""

    def offer(self, digest: str, data: bytes) -> None:
        self[digest] = data


def offering(*began_with: str, parts: int = 3) -> tuple[Offering, Blobs]:
    blobs = Blobs()
    return Offering(cast(Any, blobs), prepared(), "run", began_with, parts), blobs


def test_what_the_order_names_is_offered_and_is_what_it_is_called() -> None:
    it, blobs = offering()
    order = it.order("a")
    assert {order.program, order.state, order.share} == set(blobs)
    assert all(hashlib.sha256(blobs[digest]).hexdigest() == digest for digest in (order.state, order.share))
    state = load(blobs[order.state])
    assert state.keys() == prepared().built.state.keys()
    assert all(torch.equal(tensor, prepared().built.state[name]) for name, tensor in state.items())


def test_everybody_begins_with_the_same_weights_and_has_samples_of_its_own() -> None:
    it, blobs = offering()
    orders = [it.order(device) for device in ("a", "b", "c")]
    assert len({order.state for order in orders}) == 1
    rows = [tuple(row) for order in orders for row in load(blobs[order.share])["input"].tolist()]
    inputs = cast(Any, prepared().job.data)[0]
    assert sorted(rows) == sorted(tuple(row) for row in inputs.tolist())
    assert len(rows) == SAMPLES


def test_who_comes_back_gets_its_samples_again_and_so_does_who_began_the_run() -> None:
    it, _ = offering()
    first = {device: it.order(device).share for device in ("a", "b")}
    assert it.order("a").share == first["a"]
    resumed, _ = offering("b", "a")
    assert resumed.order("a").share == first["b"]  # by who began it, and not by who comes first
    assert resumed.order("b").share == first["a"]


def test_a_device_more_than_there_are_parts_shares_one() -> None:
    it, _ = offering("a", "b", parts=2)
    assert it.order("c").share == it.order("a").share


def test_a_device_knows_the_shape_and_type_of_every_feed_without_the_samples() -> None:
    feeds = offering()[0].order("a").feeds
    assert {name: (spec.shape, spec.dtype) for name, spec in feeds.items()} == {
        "input": ((3,), "float32"), "label": ((), "int64"),
    }  # fmt: skip
