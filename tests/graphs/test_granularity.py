"""Granularity: which ops are placed together, on hand-made graphs, captured models and the shipped ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from graphs.capture.capture import capture
from graphs.dataset import load_family
from graphs.families import FAMILIES
from graphs.granularity import GranularityError, blocks, by_module, graph_by_op, with_granularity
from graphs.op_graph import OpGraph, build_graph
from graphs.step_settings import GRANULARITIES


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Two equal blocks between an embedding and a head that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 8)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return (self.norm(x) @ self.embedding.weight.t()).square().mean()


@pytest.fixture(scope="module")
def captured() -> OpGraph:
    return capture(Model(), (torch.zeros(4, dtype=torch.int64),), name="model")


def units(graph: OpGraph) -> list[set[str]]:
    """Names of the modules of each unit's ops, of those with more than one op."""
    rows = (graph.units.row(unit) for unit in range(len(graph.units)))
    return [{graph.modules[op] for op in row} for row in rows if len(row) > 1]


def unit_of(graph: OpGraph, module: str, phase: str) -> set[int]:
    """Units of a module's ops in a phase."""
    ops = [op for op in range(graph.n_ops) if (graph.modules[op], graph.phases[op]) == (module, phase)]
    assert ops
    return set(graph.unit_of[ops].tolist())


def test_a_module_is_placed_with_its_backward_pass_parameters_and_updates(captured: OpGraph) -> None:
    graph = with_granularity(captured, "module")
    for module in ("embedding", "blocks.0.up", "blocks.1.down", "norm"):
        (unit,) = unit_of(graph, module, "forward")
        assert unit_of(graph, module, "backward") == {unit}
        assert unit_of(graph, module, "optimizer") == {unit}
    modules = {"embedding", "norm", *(f"blocks.{i}{part}" for i in (0, 1) for part in ("", ".up", ".down"))}
    assert {module for unit in units(graph) for module in unit} == modules | {""}


def test_an_op_between_modules_belongs_to_the_module_that_runs_it(captured: OpGraph) -> None:
    graph = with_granularity(captured, "module")
    (own,) = unit_of(graph, "blocks.0", "forward")  # relu and the residual sum
    assert own not in unit_of(graph, "blocks.0.up", "forward") | unit_of(graph, "blocks.1", "forward")


class Experts(nn.Module):
    """Three experts, each of which takes half of the rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wanted, parts = self.router(x).softmax(-1), []
        for expert, column in zip(self.experts, wanted.unbind(-1), strict=True):
            weight, rows = column.topk(len(x) // 2)
            parts.append(expert(x[rows]) * weight.unsqueeze(-1))
        return torch.cat(parts).sum()


def module_of(graph: OpGraph, kind: str, phase: str) -> list[str]:
    """Returns the module whose ops share a unit with each op of a type that a model runs itself."""
    linear = {int(graph.unit_of[op]): path for op, path in enumerate(graph.modules) if path}
    ops = [op for op in range(graph.n_ops) if graph.op_types[op].startswith(kind) and not graph.modules[op]]
    return [linear.get(int(graph.unit_of[op]), "") for op in ops if graph.phases[op] == phase]


def test_an_op_that_serves_one_expert_belongs_to_it() -> None:
    graph = with_granularity(capture(Experts(4), (torch.ones(8, 4),), name="moe"), "module")
    experts = [f"experts.{i}" for i in range(3)]
    assert module_of(graph, "aten.topk", "forward") == experts
    assert module_of(graph, "aten.index", "forward") == experts  # what an expert reads
    assert module_of(graph, "aten.mul", "forward") == experts  # what is made of its result
    assert set(module_of(graph, "aten.mul", "backward")) == {*experts, ""}  # of an expert and of the weights
    assert module_of(graph, "aten._softmax", "forward") == [""]  # serves all experts
    assert module_of(graph, "aten.cat", "forward") == [""]  # combines the experts
    assert len(graph.units) == 5


def test_a_sum_of_gradients_goes_to_the_producer_of_the_tensor(captured: OpGraph) -> None:
    """The input of block 1 is read by `up` and by the residual sum; block 0 made it."""
    graph = with_granularity(captured, "module")
    sums = [
        op
        for op in range(graph.n_ops)
        if graph.op_types[op].startswith("aten.add")
        and graph.phases[op] == "backward"
        and not graph.modules[op]
    ]
    assert sums
    for op in sums:
        assert graph.unit_of[op] == graph.unit_of[graph.successors.row(op)[0]]


def test_blocks_are_whole_and_the_rest_is_by_module(captured: OpGraph) -> None:
    graph = with_granularity(captured, "block")
    first, second = (unit_of(graph, f"blocks.{i}.up", "forward") for i in (0, 1))
    assert len(first | second) == 2
    for phase in ("forward", "backward", "optimizer"):
        assert unit_of(graph, "blocks.0.down", phase) == first
    assert unit_of(graph, "norm", "forward").isdisjoint(first | second)


def test_layers_are_the_blocks_and_what_follows_them(captured: OpGraph) -> None:
    graph = with_granularity(captured, "layer")
    assert len(graph.units) == 2
    assert unit_of(graph, "embedding", "forward") == unit_of(graph, "blocks.0.up", "forward")
    assert unit_of(graph, "norm", "backward") == unit_of(graph, "blocks.1.up", "backward")


def test_a_model_without_blocks_has_its_submodules_as_layers() -> None:
    module = nn.Sequential()
    module.add_module("first", nn.Linear(4, 8))
    module.add_module("second", nn.Linear(8, 2))
    graph = with_granularity(capture(module, (torch.ones(2, 4),), name="two"), "layer")
    assert len(graph.units) == 2
    assert unit_of(graph, "first", "forward").isdisjoint(unit_of(graph, "second", "forward"))


def test_nested_blocks_count_as_the_outermost() -> None:
    def ops(block: int) -> list[dict[str, object]]:
        return [
            {"name": f"{block}{i}", "type": "aten.mm", "module": f"stack.{block}.parts.{i}"} for i in (0, 1)
        ]

    graph = build_graph("nested", "", [*ops(0), *ops(1)], [(0, 8, [1]), (1, 8, [2]), (2, 8, [3])])
    assert len(with_granularity(graph, "module").units) == 4
    assert with_granularity(graph, "block").unit_of.tolist() == [0, 0, 1, 1]


class Affine(nn.Module):
    """Two parameters of one module that separate ops read first."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * self.scale) + self.shift


def test_an_update_goes_back_to_its_own_parameter_of_several() -> None:
    graph = capture(nn.Sequential(Affine(), nn.Linear(8, 8)), (torch.zeros(4, 8),), name="affine")
    found = graph_by_op(with_granularity(graph, "module"))
    assert found
    assert found.unit_of.tolist() == graph.unit_of.tolist()


def test_a_loss_after_the_layers_goes_with_the_last_of_them() -> None:
    graph = load_family("llama")[0]
    layers = with_granularity(graph, "layer")
    forward = [op for op in range(graph.n_ops) if graph.phases[op] == "forward"]
    inside = [op for op in forward if any(graph.modules[op].startswith(f"{path}.") for path in blocks(graph))]
    assert layers.unit_of[forward[-1]] == layers.unit_of[inside[-1]] != layers.unit_of[inside[0]]


@pytest.mark.parametrize("family", FAMILIES)
def test_coarser_units_hold_finer_ones_and_change_nothing_else(family: str) -> None:
    graph = load_family(family)[0]
    assert with_granularity(graph, "op") is graph
    assert graph_by_op(graph) is None
    before = graph
    for granularity in GRANULARITIES[1:]:
        coarser = with_granularity(graph, granularity)
        kept = np.ones(graph.n_ops, dtype=bool)
        if granularity == "layer":  # what a module around the layers runs itself goes op by op
            around = {""} | {
                path[:at] for path in blocks(graph) for at, letter in enumerate(path) if letter == "."
            }
            split = [op for op, path in enumerate(by_module(graph)) if path in around]
            kept[np.isin(before.unit_of, before.unit_of[split])] = False
        pairs = np.unique(np.stack([before.unit_of, coarser.unit_of])[:, kept], axis=1)
        assert len(pairs[0]) == len(np.unique(before.unit_of[kept])), granularity  # no finer unit is in two
        assert coarser.op_names == graph.op_names
        assert 1 <= len(coarser.units) <= len(before.units)
        found = graph_by_op(coarser)
        assert found
        assert found.unit_of.tolist() == graph.unit_of.tolist()
        before = coarser


def test_what_a_graph_cannot_have_is_one_line(captured: OpGraph) -> None:
    with pytest.raises(
        GranularityError, match=r"^unknown granularity 'stage'; use one of op, module, block, layer$"
    ):
        with_granularity(captured, "stage")
    plain = build_graph("plain", "", [{"name": "a"}], [])
    with pytest.raises(
        GranularityError, match=r"^graph 'plain': its ops have no module paths; use granularity op$"
    ):
        with_granularity(plain, "module")
