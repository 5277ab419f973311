"""A codec that does not do what it says is named before anything is trained, on the coordinator and on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace

from potluck.commands.training_job import choose_plan
from potluck.compress import codec_registry
from potluck.compress.codec_registry import register
from potluck.device.assembling import site_of
from potluck.errors import InputError
from potluck.tensors.coded import Like
from potluck.tensors.tried_codecs import try_codec
from potluck.types import Fleet, Plan
from potluck.wire.messages import Prepare
from tests.extending.half_precision import Half
from tests.models.zoo_jobs import devices
from tests.unit.coordinator.small_job import plan_of, prepared

CPU = torch.device("cpu")
LIKE = Like((2, 3), torch.float32)


class Theirs(Half):
    name = "theirs"


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """What leaves its first stage goes by a codec of theirs."""
    monkeypatch.setattr(codec_registry, "_known", dict(codec_registry._known))
    raw = plan_of(("d0",), ("d1",))
    return replace(raw, stages=(replace(raw.stages[0], codec="theirs"), raw.stages[1]))


class Remembers(Theirs):
    """Sends next time what rounding has left over, as some do with gradients."""

    rest: torch.Tensor | float = 0.0

    def encode(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        wanted = tensor + self.rest
        sent = wanted.half()
        self.rest = wanted - sent
        return [sent]


def theirs(**methods: Any) -> Theirs:
    """Half precision, but for these methods."""
    return cast(Theirs, type("Codec", (Theirs,), methods)())


WRONG = [
    ({"bytes": lambda self, shape, dtype: 12.0}, r"bytes gave 12.0 for \(2, 3\) float32; let it give a whole number$"),
    ({"bytes": lambda self, shape, dtype: None}, r"bytes gave None for \(2, 3\) float32; let it give a whole number$"),
    ({"bytes": lambda self, shape: 12}, r"bytes failed for \(2, 3\) float32 \(TypeError: .*\); repair it$"),
    ({"bytes": lambda self, shape, dtype: 3}, "made 12 bytes of .*, where its bytes says 3; correct its bytes$"),
    ({"seconds": lambda self, device: None}, "seconds gave None; let it give a number of seconds, 0 or more$"),
    ({"seconds": lambda self, device: float("nan")}, "seconds gave nan; let it give a number of seconds"),
    ({"seconds": lambda self: 0.0}, r"seconds failed \(TypeError: .*\); repair it$"),
    ({"encode": lambda self, tensor: [tensor.mul_(2).half()]}, "encode changes the tensor that it is given; let"),
    ({"encode": lambda self, tensor: tensor.half()}, "made a Tensor of a tensor; let encode give a list of tensors$"),
    ({"encode": lambda self, tensor: None}, "made None of a tensor; let encode give a list of tensors$"),
    (
        {"encode": lambda self, tensor: [tensor.numpy()]},
        "made a list with a ndarray of a tensor; let encode give a list of tensors$",
    ),
    ({"encode": lambda self, tensor: 1 / 0}, r"cannot encode a tensor \(ZeroDivisionError: .*\); repair it$"),
    ({"encode": lambda self, tensor: [torch.rand_like(tensor).half()]}, "encode makes other parts of the same tensor;"),
    ({"decode": lambda self, parts, shape, dtype: parts[0]}, r"decoded a message to \(2, 3\) torch.float16 instead of"),
    ({"decode": lambda self, parts, shape, dtype: parts[0].to(dtype).flatten()}, r"decoded a message to \(6,\) "),
    ({"decode": lambda self, parts, shape, dtype: None}, "decoded a message to None; let decode give a tensor$"),
    ({"decode": lambda self, parts: None}, r"cannot decode a message \(TypeError: .*\); repair it"),
    ({"exact": True}, "it is exact, it says, and gives other bits back; set exact to False, or repair it$"),
]


@pytest.mark.parametrize(("methods", "why"), WRONG)
def test_what_it_does_wrong_is_said_with_its_name(methods: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"^codec 'theirs':? {why}"):
        try_codec(theirs(**methods), LIKE, CPU)


def test_one_that_remembers_is_found_out() -> None:
    with pytest.raises(
        InputError, match=r"^codec 'theirs': encode makes other parts of the same tensor; let it remember"
    ):
        try_codec(Remembers(), LIKE, CPU)


@pytest.mark.parametrize("like", [LIKE, Like((), torch.float64), Like((2, 0), torch.bfloat16)])
def test_one_that_does_as_it_says_passes_and_draws_nothing_at_random(like: Like) -> None:
    before = torch.get_rng_state()
    try_codec(theirs(), like, CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_coordinator_tries_what_a_plan_names_on_what_crosses(plan: Plan) -> None:
    seen: list[tuple[int, ...]] = []

    def encode(self: Theirs, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        seen.append(tuple(tensor.shape))
        return Half.encode(self, tensor)

    register(theirs(encode=encode))
    choose_plan(prepared(), plan, Fleet(devices=devices(2)))
    assert set(seen) == {(2, 4)}


def test_one_that_fails_is_refused_before_a_device_is_asked(plan: Plan) -> None:
    register(theirs(decode=lambda self, parts, shape, dtype: parts[0]))
    with pytest.raises(InputError, match=r"^codec 'theirs' decoded a message to \(2, 4\) torch.float16 instead of"):
        choose_plan(prepared(), plan, Fleet(devices=devices(2)))


def test_a_device_tries_the_one_that_it_has(plan: Plan) -> None:
    register(theirs(encode=lambda self, tensor: None))
    order = Prepare(
        run="r", term=1, round=0, moves=(), plan=plan, program="", peers={}, optimizer=prepared().optimizer, seed=0,
        clip_norm=None, own_commit=False, window_bytes=0,
    )  # fmt: skip
    nothing = cast(Any, None)
    with pytest.raises(InputError, match=r"^codec 'theirs' made None of a tensor"):
        site_of(nothing, order, "d0", nothing, prepared().built.programs, CPU, 1.0)
