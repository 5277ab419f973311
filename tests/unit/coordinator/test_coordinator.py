"""The coordinator and its round loop, with devices that answer at once: terms begin, rounds are committed, runs end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.coordinator.contexts import RunContext, TermContext
from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.rounds.round_loop import RoundLoop
from potluck.coordinator.run_folder.folder import RunFolder
from potluck.coordinator.run_folder.term_log import TERMS, read_terms
from potluck.coordinator.samples.loading import training_order
from potluck.errors import DeviceError, Overdue, PotluckError
from potluck.metrics.records import RECORDS, read
from potluck.program.layout import PlanLayout
from potluck.tensors.model_state import ModelState
from potluck.types import Plan, RoundRecord
from potluck.wire.messages import Begin, LossPart, Prepare, Prepared, Ready, Verdict
from tests.unit.builders import fleet
from tests.unit.coordinator.small_job import plan_of, prepared, small_job
from tests.unit.memory_link import memory_links

Report = Callable[[str, int, int], Ready]  # device, round, attempt


def finite(device: str, round: int, attempt: int) -> Ready:
    return Ready(round=round, losses=(LossPart(0, 0, float(round), 1.0),) if device == "d1" else ())


def never_finite(device: str, round: int, attempt: int) -> Ready:
    return Ready(round=round, finite=False, trouble="a NaN in block 1")


def finite_the_second_time(device: str, round: int, attempt: int) -> Ready:
    return finite(device, round, attempt) if attempt or round != 1 else never_finite(device, round, attempt)


class Devices:
    """A roster of two devices; whatever they say lies in a queue."""

    def __init__(self, report: Report, *, silent: str = "") -> None:
        self._report, self._silent = report, silent
        self._said: deque[tuple[str, Any]] = deque()
        self.links = {"d0": "memory:d0", "d1": "memory:d1"}
        self.specs = {spec.name: spec for spec in fleet("d0", "d1").devices}
        self.hellos: dict[str, Any] = {}
        self.what_now = "start again"
        self.told: list[tuple[str, Any]] = []
        self.told_first: Callable[[Any], None] = lambda message: None

    def send(self, device: str, message: Any) -> None:
        self.told_first(message)
        self.told.append((device, message))
        if device == self._silent:
            return
        if isinstance(message, Prepare):
            self._said.append((device, Prepared(term=message.term)))
        elif isinstance(message, Begin):
            self._said.append((device, self._report(device, message.round, 0)))
        elif isinstance(message, Verdict) and message.kind == "retry":
            self._said.append((device, self._report(device, message.round, 1)))

    def broadcast(self, message: Any, devices: tuple[str, ...]) -> None:
        for device in devices:
            self.send(device, message)

    def next(self, deadline_s: float, waiting_for: str) -> tuple[str, Any]:
        if not self._said:
            raise Overdue(waiting_for)
        return self._said.popleft()

    def drop(self, device: str, why: str) -> None:
        del self.links[device], self.specs[device]

    def watch(self, devices: tuple[str, ...]) -> None:
        self.watched = devices

    def heard_by(self, device: str, kind: type) -> list[Any]:
        return [message for name, message in self.told if name == device and isinstance(message, kind)]


class Run:
    """A coordinator on a folder."""

    def __init__(self, path: Path, devices: Devices, plan: Plan) -> None:
        self.path, self.devices = path, devices
        self.link, *_ = memory_links(["coordinator", *plan.devices])
        self.link.cancel = lambda reason: None  # type: ignore[method-assign]
        self.folder = RunFolder(path, small_job(), b"", fsync=False)
        live = SimpleNamespace(
            roster=devices,
            link=self.link,
            next_term=lambda after: after + 1,
            fleet=fleet("d0", "d1"),
        )
        self.changes = SimpleNamespace(
            profile=None, measuring=set(), adopted=lambda plan: None, lost=lambda device, why: None, apart=()
        )
        run = RunContext(
            job=small_job(), optimizer=prepared().optimizer, digest="p", data_digest="d",
            outputs=prepared().built.outputs, model=ModelState(dict(prepared().built.state), {}, {}),
            roster=cast(Any, devices), link=cast(Any, self.link), folder=self.folder,
            order=training_order(small_job()), timeout_s=5.0, keeps=False,
        )  # fmt: skip
        term = TermContext(run, plan, PlanLayout(prepared().built.programs, plan), term=0, first_round=0, copies=False)
        self.it = Coordinator(cast(Any, live), prepared(), cast(Any, self.changes), term)

        devices.told_first = self._check_written

    def _check_written(self, message: Any) -> None:
        """Whatever a device hears rests on something that is on disk."""
        if isinstance(message, Prepare):
            assert read_terms(self.path / TERMS)[message.term].plan == message.plan
        if isinstance(message, Verdict) and message.kind == "commit":
            assert self.folder.ledger.rounds > message.round

    def losses(self) -> list[tuple[int, float]]:
        self.folder.records.close()
        return [(r.round, r.loss) for r in read(self.path / RECORDS) if isinstance(r, RoundRecord)]


@pytest.fixture
def run_with(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Opens a run whose devices report so."""
    opened: list[Run] = []

    def open_run(report: Report = finite, **more: Any) -> Run:
        opened.append(Run(tmp_path, Devices(report, **more), plan_of(("d0",), ("d1",))))
        opened[-1].it.open({})
        return opened[-1]

    yield open_run
    for run in opened:
        run.it.close()


def test_a_plan_is_on_disk_before_anybody_hears_of_it_and_trains_when_all_are_ready(
    run_with: Callable[..., Run],
) -> None:
    run = run_with()
    (prepare,) = run.devices.heard_by("d0", Prepare)
    assert not run.it.training
    loop = run.it.next()
    assert isinstance(loop, RoundLoop)
    assert run.it.training
    assert (loop.term.term, loop.term.plan, run.devices.watched) == (prepare.term, prepare.plan, prepare.plan.devices)


def test_every_round_is_begun_and_committed_in_order_and_written_down(run_with: Callable[..., Run]) -> None:
    run = run_with()
    loop = run.it.next()
    assert loop.train() == "finished"
    assert loop.committed == run.folder.ledger.rounds == 3
    for device in ("d0", "d1"):
        assert [b.round for b in run.devices.heard_by(device, Begin)] == [0, 1, 2]
        assert [(v.round, v.kind) for v in run.devices.heard_by(device, Verdict)] == [(r, "commit") for r in range(3)]
    assert run.losses() == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_round_that_is_not_finite_is_run_once_more(run_with: Callable[..., Run]) -> None:
    run = run_with(finite_the_second_time)
    assert run.it.next().train() == "finished"
    verdicts = [(v.round, v.kind) for v in run.devices.heard_by("d0", Verdict)]
    assert verdicts == [(0, "commit"), (1, "retry"), (1, "commit"), (2, "commit")]
    assert run.losses() == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_round_that_is_never_finite_stops_the_run_and_is_not_committed(run_with: Callable[..., Run]) -> None:
    run = run_with(never_finite)
    with pytest.raises(PotluckError, match=r"round 0: a NaN in block 1 on device d0; it was not committed"):
        run.it.next().train()
    assert [v.kind for v in run.devices.heard_by("d1", Verdict)] == ["retry", "stop"]
    assert run.folder.ledger.rounds == 0


def test_a_run_whose_devices_never_get_ready_ends_with_a_reason(run_with: Callable[..., Run]) -> None:
    run = run_with(silent="d1")
    with pytest.raises(DeviceError, match="start again"):
        run.it.next()
