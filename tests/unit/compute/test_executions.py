"""Another way to execute a stage is one class and its name: nothing else has to know of it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn

import potluck
from potluck.compute.execution import executions
from potluck.compute.execution.execution import Registers
from potluck.compute.execution.interpreter import Interpreter, look_up
from potluck.compute.our_operators import Context, our_function, torch_constant
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.device.measure.bench import Bench, Rig
from potluck.device.pushing.held_out_loss import HeldOutLoss
from potluck.errors import InputError
from potluck.model.build import BuiltModel, build
from potluck.program.carve import Carver
from potluck.program.operators import OURS
from potluck.program.program import Arg, Here, Items, Named, Program, Ref, Size, evaluate_size, inputs_of
from tests.unit.model.pipeline import CPU, MOMENTUM, Pipeline, even_cuts

ROWS = 6
forwards: list[int] = []  # rows of each


class Graph(Interpreter):
    """The piece as a GraphModule, which torch could compile; backward and step are those of the interpreter."""

    def __init__(self, program: Program, positions: Sequence[int], keep: Iterable[int], device: torch.device) -> None:
        self._program, self._positions, self._where = program, positions, device
        nodes = [program.nodes[p] for p in positions]
        made = {v for node in nodes for v in node.outputs}
        self._reads = sorted({v for node in nodes for v in inputs_of(node)} - made)
        self._gives = sorted(made & set(keep))
        self._modules: dict[int, fx.GraphModule] = {}

    @property
    def can_wait(self) -> bool:
        return False

    def forward(self, registers: Registers, context: Context) -> None:
        forwards.append(context.rows)
        if context.rows not in self._modules:
            self._modules[context.rows] = self._module(context.rows)
        found = self._modules[context.rows](context, *(registers[v] for v in self._reads))
        for value, tensor in zip(self._gives, found, strict=True):
            registers[value] = tensor

    def _module(self, rows: int) -> fx.GraphModule:
        graph = fx.Graph()
        context = graph.placeholder("context")
        at = {v: graph.placeholder(f"v{v}") for v in self._reads}
        for node in (self._program.nodes[p] for p in self._positions):
            ours = node.op in OURS
            function = our_function(node, self._program.values) if ours else look_up(node.op)
            arguments = [self._argument_of(a, rows, at) for a in node.args]
            keywords = {k: self._argument_of(a, rows, at) for k, a in node.kwargs.items()}
            result = graph.call_function(function, (context, *arguments) if ours else tuple(arguments), keywords)
            for place, value in enumerate(node.outputs):
                at[value] = graph.call_function(operator.getitem, (result, place)) if node.tuple_output else result
        graph.output(tuple(at[v] for v in self._gives))
        return fx.GraphModule(nn.Module(), graph)

    def _argument_of(self, arg: Arg, rows: int, at: dict[int, fx.Node]) -> Any:
        match arg:
            case Ref(id=value):
                return at[value]
            case Size(tree=tree):
                return evaluate_size(tree, rows)
            case Items(items=items):
                return [self._argument_of(a, rows, at) for a in items]
            case Here():
                return self._where
            case Named(kind=kind, name=name):
                return torch_constant(kind, name)
            case _:
                return arg


class Net(nn.Module):
    """Convolution, BatchNorm, dropout, attention's shapes: operators with lists, sizes and several results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        out: torch.Tensor = self.head(self.drop(x.flatten(2).mean(2)))
        return out


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> BuiltModel:
    monkeypatch.setattr(executions, "EXECUTIONS", {**executions.EXECUTIONS, "graph": Graph})
    forwards.clear()
    torch.manual_seed(0)
    return build(Net(), nn.functional.cross_entropy, feeds(), torch.ones(ROWS, dtype=torch.float64))


def feeds() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(ROWS, 3, 4, 4), "label": torch.randint(0, 5, (ROWS,))}


def trained(built: BuiltModel, kernels: str) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(1)
    state = {n: t.clone() for n, t in built.state.items()}
    pipeline = Pipeline(built.programs.with_kernels(kernels), state, even_cuts(built.programs.train.block_count, 2))
    for number in range(3):
        pipeline.round(number, [(feeds(), torch.ones(ROWS)) for _ in range(2)])
    return pipeline.tensors(), pipeline.evaluate(feeds())


def test_a_graph_trains_a_cut_model_to_the_bits_of_the_interpreter(built: BuiltModel) -> None:
    expected, outputs = trained(built, "torch")
    assert not forwards
    found, same_outputs = trained(built, "graph")
    assert len(forwards) == 2 * (3 * 2 + 1)  # stages × (micro-batches and an evaluation)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert all(torch.equal(a, b) for a, b in zip(outputs, same_outputs, strict=True))


def test_profiling_times_the_execution_that_will_run(built: BuiltModel) -> None:
    programs = built.programs.with_kernels("graph")
    carvers = Carver(programs.train), Carver(programs.eval)
    Bench(Rig(programs, carvers, MOMENTUM, feeds(), CPU, 1.0), 0).chunk(4, 3)
    assert forwards == [4, 4, 4]


def test_a_device_judges_its_own_samples_with_the_execution_that_trains(built: BuiltModel) -> None:
    judge = build(
        Net(), nn.functional.cross_entropy, feeds(), torch.ones(ROWS, dtype=torch.float64), judged=True
    ).programs.with_kernels("graph").judge  # fmt: skip
    assert judge is not None
    held_out = HeldOutLoss(judge, feeds(), 4, CPU)
    held_out.begin(1, built.state)
    assert held_out.step() is None
    verdict = held_out.step()
    assert verdict is not None
    assert verdict.loss is not None
    assert forwards == [4, 2]


class Untouched:
    """Data that nobody may look at."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("samples were made")


def test_a_name_that_nobody_registered_is_refused_before_the_model_is_built() -> None:
    job = potluck.Job(
        model=Net, loss=nn.functional.cross_entropy, data=Untouched(),
        optimizer=potluck.SGD(lr=0.1), batch_size=4, rounds=1, kernels="fast",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"kernels 'fast': not known; give one of quick, torch"):
        prepare_job(job)
