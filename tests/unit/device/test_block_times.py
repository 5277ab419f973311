"""Blocks measured one at a time: within the budget, complete, and in memory what a whole stage has."""

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import potluck
from potluck.compute.runner import Rows, StageRunner, StageState
from potluck.coordinator.samples.loading import first_samples
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.device.measure.bench import Bench, Rig
from potluck.device.measure.block_times import _ENOUGH, end_of, measure_blocks, page_faults, retime, warmest
from potluck.device.measure.live_bytes import StorageMeter
from potluck.errors import DeviceError
from potluck.profile.cells import only
from potluck.program.carve import Carver
from potluck.program.signature import signature

ROWS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grow, self.shrink, self.norm = nn.Linear(16, 64), nn.Linear(64, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.shrink(torch.relu(self.grow(self.norm(x))))
        return result


def layers(depth: int, frozen: int) -> nn.Sequential:
    found = [nn.Embedding(20, 16), *(Block() for _ in range(depth)), nn.Linear(16, 20)]
    for layer in found[:frozen]:
        layer.requires_grad_(False)
    return nn.Sequential(*found)


def words(depth: int = 4, frozen: int = 0) -> PreparedJob:
    """A small language model: integer feeds, equal blocks, a tied weight left out; its first layers may be frozen."""
    tokens = torch.randint(0, 20, (16, 8), generator=torch.Generator().manual_seed(0))
    job = potluck.Job(
        model=lambda: layers(depth, frozen),
        loss=lambda out, labels: nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten()),
        optimizer=potluck.Adam(lr=0.01),
        data=(tokens, tokens.roll(-1, 1)),
        batch_size=16,
        micro_batch_size=ROWS,
        rounds=1,
    )
    return prepare_job(job)


def rig_of(prepared: PreparedJob, speed: float = 1.0) -> Rig:
    programs = prepared.built.programs
    samples = first_samples(prepared.job, 3).feeds  # fewer than the rows wanted
    carvers = (Carver(programs.train), Carver(programs.eval))
    return Rig(programs, carvers, prepared.optimizer, samples, torch.device("cpu"), speed)


@pytest.fixture(scope="module")
def prepared() -> PreparedJob:
    torch.set_num_threads(1)
    return words()


@pytest.fixture(scope="module")
def frozen() -> PreparedJob:
    """All but the last layer and the one before it."""
    torch.set_num_threads(1)
    return words(frozen=4)


def sizes(prepared: PreparedJob) -> list[float]:
    return [float(b.weight_bytes + 1) for b in prepared.facts.blocks]


def test_every_cell_is_measured_when_there_is_time(prepared):
    told: list[tuple[int, int]] = []
    blocks, call_s = measure_blocks(rig_of(prepared), (ROWS, 2), 20.0, sizes(prepared), lambda *done: told.append(done))
    assert len(blocks) == len(prepared.facts.blocks)
    assert all(cell.measured for block in blocks for cell in block.timings)
    heaviest = max(blocks, key=lambda block: only(block, ROWS).forward_s)
    assert only(heaviest, ROWS).forward_s > 0
    assert only(heaviest, ROWS).backward_s > 0
    assert sum(block.update_s for block in blocks) > 0
    assert call_s > 0
    assert told[-1][0] == told[-1][1]


def test_equal_blocks_share_a_measurement(prepared):
    rig, program = rig_of(prepared), prepared.built.programs.train
    digests = [signature(program, rig.piece(b)) for b in range(program.block_count)]
    assert len(set(digests)) < len(digests)
    assert digests[0] not in digests[1:]


def test_time_is_kept_whatever_the_device(prepared):
    started = time.monotonic()
    blocks, _ = measure_blocks(rig_of(prepared, speed=0.02), (ROWS, 2, 8), 0.5, sizes(prepared))
    assert time.monotonic() - started < 3.0
    cells = [cell for block in blocks for cell in block.timings]
    assert not all(cell.measured for cell in cells)
    assert all(cell.forward_s >= 0 and cell.kept_bytes >= 0 for cell in cells)


def test_what_is_frozen_takes_no_update_and_no_backward_and_keeps_nothing(frozen: PreparedJob) -> None:
    blocks, _ = measure_blocks(rig_of(frozen), (ROWS, 2), 8.0, sizes(frozen))
    trains = [block.trainable_bytes > 0 for block in frozen.facts.blocks]
    first = trains.index(True)
    assert first > 2
    assert [block.update_s > 0 for block in blocks] == trains
    assert {cell.backward_s for block in blocks[:first] for cell in block.timings} == {0.0}
    assert {cell.kept_bytes for block in blocks[1:first] for cell in block.timings} == {0}
    tokens = ROWS * 8 * 8  # they are kept until the verdict, in case the round is tried again
    assert only(blocks[0], ROWS).kept_bytes == tokens
    assert only(blocks[first], ROWS).kept_bytes > 0


def test_a_block_that_nobody_reached_costs_an_update_only_if_it_is_trained(
    frozen: PreparedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(frozen)
    last = set(rig.piece(rig.programs.train.block_count - 1).parameters)

    def small_ones(bench: Bench, rows: int, count: int) -> tuple[float, float]:
        if set(bench.runner.parameters) <= last:  # nothing at all, too
            return 1.0, 2.0
        raise MemoryError("too large")

    monkeypatch.setattr(Bench, "chunk", small_ones)
    blocks, _ = measure_blocks(rig, (ROWS,), 4.0, sizes(frozen))
    assert [b.update_s > 0 for b in blocks] == [b.trainable_bytes > 0 for b in frozen.facts.blocks]


def test_a_backward_that_has_nothing_to_do_is_not_run(frozen: PreparedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(rig_of(frozen), 1)
    monkeypatch.setattr(bench.runner, "backward", None)
    assert bench.chunk(ROWS, 3)[1] == 0


@pytest.mark.parametrize("recompute", [False, True])
def test_a_stage_without_backward_keeps_nothing_it_sent_and_runs_no_forward_again(
    frozen: PreparedJob, recompute: bool
) -> None:
    rig = rig_of(frozen)
    stage = Bench(rig, (0, 2))
    feeds, received, _ = stage.inputs(ROWS)
    state = stage.runner.state()
    runner = StageRunner(rig.programs, (0, 2), state, frozen.optimizer, 0, rig.device, rig.carvers, recompute=recompute)
    there = [*feeds.values(), *runner.parameters.values(), *runner.buffers.values()]
    with StorageMeter(there) as kept:
        sent = runner.forward(Rows(0, 0, 0, ROWS), feeds, received, 1.0)
        assert kept.now == sum(t.nbytes for t in sent.values())
        del sent
        assert kept.now == 0
    with StorageMeter(there) as again:
        assert runner.backward(0, 0, {}) == {}
        assert again.peak == 0


class Clocks:
    """Time that passes only where work is done or slept through: what this machine is busy with does not count."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = self.slept_s = 0.0

    def work(self, cpu_s: float, waited_s: float) -> None:
        """Work of so many CPU seconds, while others had the processor for so many more."""
        self.cpu_s += cpu_s
        self.wall_s += cpu_s + waited_s

    def perf_counter(self) -> float:
        return self.wall_s

    monotonic = perf_counter

    def thread_time(self) -> float:
        return self.cpu_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.wall_s += seconds


@pytest.mark.parametrize(
    ("speed", "stretch", "forward_s"),
    [
        (1.0, None, 3.0),  # what the clock says,
        (0.1, None, 3.0 + 9 * 1.0),  # and nine times its CPU time more
        (1.0, 2.0, 2.0),  # where a second of the processor takes two: only its own
        (0.1, 2.0, 2.0 + 9 * 1.0),
    ],
)
def test_a_slower_device_takes_longer(prepared, monkeypatch, speed, stretch, forward_s):
    clocks, rig = Clocks(), rig_of(prepared, speed)
    pace: Any = None if stretch is None else SimpleNamespace(stretch=stretch, add=lambda *more: None)
    bench = Bench(replace(rig, pace=pace), 1)
    monkeypatch.setattr(bench.runner, "forward", lambda *given: clocks.work(1.0, 2.0))
    monkeypatch.setattr(bench.runner, "backward", lambda *given: clocks.work(2.0, 4.0))
    for module in ("measure.bench", "host.throttle"):
        monkeypatch.setattr(f"potluck.device.{module}.time", clocks)
    assert bench.chunk(ROWS, 5) == pytest.approx((forward_s, 2 * forward_s))
    assert clocks.slept_s == pytest.approx(5 * 3.0 * (1 / speed - 1))  # so that it really takes longer


def test_blocks_that_cannot_run_are_named(prepared):
    rig = rig_of(prepared)
    broken = Rig(rig.programs, rig.carvers, rig.optimizer, {n: t[:, :0] for n, t in rig.samples.items()}, rig.device, 1)
    tokens = [i for i in range(len(sizes(prepared))) if rig.piece(i).feeds]
    with pytest.raises(DeviceError, match=f"block {tokens[-1]} could not be timed again: block {tokens[-1]}, 4 rows"):
        retime(broken, tokens[-1], ROWS, 1.0)


def test_blocks_with_weights_of_their_own_say_what_putting_their_gradients_off_saves(prepared):
    blocks, _ = measure_blocks(rig_of(prepared), (ROWS,), 4.0, sizes(prepared))
    able = [b for b in blocks if b.late_weights]
    assert able
    assert len(able) < len(blocks)
    assert all(0 < b.late_back < 3 and b.late_weights < 3 for b in able)
    assert all(0 < b.late_kept < 4 for b in able)
    assert all(b.late_back == 1.0 for b in blocks if not b.late_weights)


def test_one_cell_again(prepared):
    assert retime(rig_of(prepared), 1, ROWS, 2.0).rows == ROWS


def test_what_blocks_keep_adds_up_to_what_a_whole_stage_keeps(prepared):
    rig, programs = rig_of(prepared), prepared.built.programs
    count = programs.train.block_count
    kept = []
    for block in range(count):
        bench = Bench(rig, block)
        bench.chunk(ROWS, 2)
        kept.append(bench.bytes(ROWS)[0])
    state = StageState(dict(prepared.built.state), {})
    whole = Bench(rig, 0)
    whole.runner = StageRunner(programs, (0, count), state, prepared.optimizer, 0, rig.device, rig.carvers)
    whole._given.clear()
    whole.chunk(ROWS, 2)
    together = whole.bytes(ROWS)[0]
    assert together <= sum(kept) <= 1.35 * together  # a value between blocks that nobody saves counts all the same


def test_the_meter_counts_what_lives_and_the_worst_moment():
    weight = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(32, 64)
    (x @ weight).sum().backward()
    assert weight.grad is not None
    meter = StorageMeter([x, weight, weight.grad])
    with meter:
        hidden = torch.relu(x @ weight)  # autograd keeps the result of relu
        size = hidden.nbytes
        assert meter.now == size
        assert meter.peak == 2 * size
        loss = hidden.sum()
        del hidden
        assert meter.now == size + loss.nbytes
        loss.backward()
        del loss
        assert meter.now == 0
        assert meter.peak >= weight.nbytes


def test_a_forward_of_nothing_hands_on_what_it_got(prepared):
    bench = Bench(rig_of(prepared), None)
    feeds, received, seeds = bench.inputs(2)
    assert not feeds
    sent = bench.runner.forward(Rows(0, 0, 0, 2), feeds, received, 1.0)
    assert all(torch.equal(sent[v], received[v]) for v in received)
    assert set(bench.runner.backward(0, 0, seeds)) == set(received)


def test_samples_that_touched_new_memory_do_not_count():
    cold, warm, as_warm = ((9.0, 9.0), 3000), ((2.0, 3.0), 5), ((2.0, 2.0), 20)
    assert warmest([cold, warm, cold, as_warm]) == [warm[0], as_warm[0]]
    assert warmest([cold]) == [cold[0]]


def test_samples_that_touch_as_much_as_each_other_count_all():
    assert len(warmest([((2.0, 3.0), faults) for faults in (50_000, 50_090, 50_040)])) == 3


@pytest.mark.parametrize(
    ("faults", "end"),
    [
        ((3000, 1500), 2.0),
        ((3000, 5), 2.0),  # a single one is not much to go by
        ((3000, 5, 0, 7), 1.0),
        ((3000, 5000, 5010, 5005), 1.0),  # it is always so: more of them will not be warmer
    ],
)
def test_where_few_samples_are_warm_more_are_taken(faults, end):
    assert end_of([((1.0, 1.0), touched) for touched in faults], until=1.0, patience=2.0) == end


def test_a_block_is_measured_once_it_touches_no_new_memory(
    prepared: PreparedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the second one, which needs more of it than the first."""
    touched, passes = [0], dict[int, int]()

    def chunk(bench: Bench, rows: int, count: int) -> tuple[float, float]:
        if rows != ROWS:
            return 0.0, 0.0  # a call of nothing
        number = passes[id(bench)] = passes.get(id(bench), 0) + 1
        if number > 5:
            return 1.0, 1.0
        touched[0] += 10_000 // number
        return 10.0, 1.0

    benches: list[Bench] = []  # kept, so that no two have the same id
    build = Bench.__init__

    def kept(bench: Bench, *given: Any) -> None:
        benches.append(bench)
        build(bench, *given)

    monkeypatch.setattr(Bench, "__init__", kept)
    monkeypatch.setattr(Bench, "chunk", chunk)
    monkeypatch.setattr("potluck.device.measure.block_times.page_faults", lambda: touched[0])
    rig = rig_of(prepared)
    blocks, _ = measure_blocks(rig, (ROWS,), 5.0, [1.0] * rig.programs.train.block_count)
    assert {only(block, ROWS).forward_s for block in blocks} == {1.0}


def test_a_slow_block_gets_time_to_become_warm(prepared: PreparedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first passes take longer than its whole share of the time."""
    touched, passes, now = [0], [0], [0.0]

    def chunk(bench: Bench, rows: int, count: int) -> tuple[float, float]:
        if rows != ROWS:
            return 0.0, 0.0
        passes[0] += 1
        cold = passes[0] <= 5
        touched[0] += 10_000 // passes[0] if cold else 0
        now[0] += 2.5 if cold else 0.1
        return (10.0, 1.0) if cold else (1.0, 1.0)

    monkeypatch.setattr(Bench, "chunk", chunk)
    monkeypatch.setattr("potluck.device.measure.block_times.page_faults", lambda: touched[0])
    monkeypatch.setattr("potluck.device.measure.block_times.time", SimpleNamespace(monotonic=lambda: now[0]))
    rig = rig_of(prepared)
    others = tuple(range(ROWS + 1, ROWS + 10))  # the share of a block is a twelfth of the time: less than four passes
    found, _ = measure_blocks(rig, (ROWS, *others), 100.0, [1.0] * rig.programs.train.block_count)
    assert {only(block, ROWS).forward_s for block in found} == {1.0}


def test_memory_that_is_touched_is_counted() -> None:
    before = page_faults()
    kept = torch.ones(32 * 2**20)  # 128 MB
    assert page_faults() - before > 32 * 2**20 // 4096 * 4 // 600  # huge pages at best
    assert kept.sum() == 32 * 2**20


def test_a_block_that_touches_new_memory_for_ever_is_measured_all_the_same(
    prepared: PreparedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = itertools.count(0, 10_000)
    monkeypatch.setattr("potluck.device.measure.block_times.page_faults", lambda: next(faults))
    rig = rig_of(prepared)
    blocks, _ = measure_blocks(rig, (ROWS,), 5.0, [1.0] * rig.programs.train.block_count)
    assert all(only(block, ROWS).measured for block in blocks)
    passes = next(faults) // 10_000 // 2 // len(blocks)
    assert passes <= 3 + _ENOUGH, "as many as tell that it is always so, and what is measured then"
