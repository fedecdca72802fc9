"""Device maps, judged by `accelerate.dispatch_model`: on pretended GPUs, and by values on the processor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils import find_tied_parameters
from torch import Tensor, nn
from torch.nn import functional

from agent.placing.exports.export import PlacedModules, export_text
from agent.placing.handover.device_map import DeviceMap, project
from envs.cluster.presets import get_cluster
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.capture.capture import capture
from graphs.capture.structures import leaves_of
from graphs.granularity import with_granularity
from graphs.io.graph_files import read_graphs, write_graphs
from graphs.op_graph import OpGraph
from tests.agent.placing.handover.architectures import ARCHITECTURES, make
from tests.agent.placing.handover.pretended_gpus import run_on_pretended_gpus, run_with_hooks

X: Mapping[str, Tensor] = {"x": torch.linspace(-1, 1, 4 * 6 * 8).reshape(4, 6, 8)}
IDS: Mapping[str, Tensor] = {"ids": torch.arange(24).reshape(4, 6) % 20}


class Block(nn.Module):
    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), act or nn.GELU(), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


def blocks() -> nn.ModuleList:
    return nn.ModuleList(Block() for _ in range(4))


def through(modules: nn.ModuleList, x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


class Tied(nn.Module):
    """A head that holds the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.layers, self.head = nn.Embedding(20, 8), blocks(), nn.Linear(8, 20, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(through(self.layers, self.emb(ids)))


class SiblingsWeight(nn.Module):
    """Uses the weight of a submodule without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.layers = nn.Embedding(20, 8), blocks()

    def forward(self, ids: Tensor) -> Tensor:
        return functional.linear(through(self.layers, self.emb(ids)), self.emb.weight)


class RootTensors(nn.Module):
    """Has positions, a projection that is a child's weight too, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.pos, self.proj = nn.Parameter(torch.rand(6, 8)), nn.Parameter(torch.rand(8, 8))
        self.embed, self.layers, self.norm = nn.Linear(8, 8), blocks(), nn.LayerNorm(8)
        self.register_buffer("scale", torch.rand(8), persistent=False)
        self.embed.weight = self.proj

    def forward(self, x: Tensor) -> Tensor:
        x = through(self.layers, self.embed(x) + self.pos)
        return self.norm(x) @ self.proj * self.scale


class Twice(nn.Module):
    """Registers a parameter twice, and a module in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Parameter(torch.rand(8))
        self.first, self.layers = nn.Linear(8, 8), blocks()
        self.last = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.last(through(self.layers, self.first(x * self.a))) + self.b


class SharedBuffer(nn.Module):
    """Has one buffer in two submodules, and one activation in all blocks."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.layers = nn.ModuleList(Block(act) for _ in range(4))
        self.first, self.last = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
        self.last.running_mean = self.first.running_mean

    def forward(self, x: Tensor) -> Tensor:
        return self.last(through(self.layers, self.first(x)))


class Deep(nn.Module):
    """Has tensors of its own beside blocks, and so has its child; one of a list of parameters."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.own = nn.ParameterList([nn.Parameter(torch.rand(8)) for _ in range(2)])
        self.bias = nn.Parameter(torch.rand(8))
        self.layers = blocks()
        self.inner = Deep(depth - 1) if depth else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = through(self.layers, x * self.own[0] + self.bias)
        return self.inner(x) + self.own[1]


SMALL: dict[str, tuple[type[nn.Module], Mapping[str, Tensor]]] = {
    "tied": (Tied, IDS),
    "a sibling's weight": (SiblingsWeight, IDS),
    "tensors of the model": (RootTensors, X),
    "registered twice": (Twice, X),
    "shared buffer and activation": (SharedBuffer, X),
    "nested": (Deep, X),
}


def graph_of(module: nn.Module, inputs: Mapping[str, Tensor]) -> OpGraph:
    return capture(module, dict(inputs), training=False, notify=lambda _: None)


def placements(graph: OpGraph, n_devices: int, *, each_once: bool = False) -> list[tuple[OpGraph, Any]]:
    """Placements at random and in ranges, forwards and backwards; by op, module and layer.

    Args:
        each_once: whether each kind of placement is of one granularity alone.
    """
    found = []
    for first, granularity in enumerate(("op", "module", "layer")):
        coarse = with_granularity(graph, granularity)
        n_units = len(coarse.units)
        ranges = np.arange(n_units) * n_devices // n_units
        random = np.random.default_rng(0).integers(0, n_devices, n_units)
        kinds = [random, n_devices - 1 - ranges, ranges]
        for units in kinds[first : first + 1] if each_once else kinds:
            found.append((coarse, units[coarse.unit_of]))
    return found


def tensors_in(returned: Any) -> list[Tensor]:
    return [leaf for leaf in leaves_of(returned) if isinstance(leaf, Tensor)]


def check(module: nn.Module, inputs: Mapping[str, Tensor], found: DeviceMap) -> None:
    """Runs a map of several devices on pretended GPUs; each tensor of several paths is on one."""
    if found.devices.keys() == {""}:
        return
    at = run_on_pretended_gpus(module, inputs, found.devices)
    for paths in find_tied_parameters(module):
        assert len({at[path] for path in paths}) == 1
    with torch.no_grad():
        expected = module(**inputs)
    torch.testing.assert_close(
        tensors_in(run_with_hooks(module, inputs, found.devices)), tensors_in(expected)
    )


@pytest.mark.parametrize("name", SMALL)
def test_accelerate_runs_maps_of_tensors_with_several_owners(name: str) -> None:
    make_module, inputs = SMALL[name]
    torch.manual_seed(0)
    module = make_module().eval()
    n_used = []
    for graph, device_of in placements(graph_of(module, inputs), 3):
        found = project(Problem(graph, get_cluster("4xv100")), device_of)
        check(module, inputs, found)
        n_used.append(len(set(found.devices.values())))
    assert max(n_used) == 3


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_accelerate_runs_the_maps_of_transformers(name: str) -> None:
    module, inputs = make(name)
    n_used = []
    for at, (graph, device_of) in enumerate(placements(graph_of(module, inputs), 4, each_once=True)):
        found = project(Problem(graph, get_cluster("4xv100")), device_of)
        n_used.append(len(set(found.devices.values())))
        if at == 2:  # in ranges of layers
            check(module, inputs, found)
        elif found.devices.keys() != {""}:
            run_on_pretended_gpus(module, inputs, found.devices)
    assert max(n_used) >= 3


def test_weights_on_a_cpu_run_on_the_first_gpu() -> None:
    module = Tied().eval()
    graph = graph_of(module, IDS)
    cluster = get_cluster("gpu+cpu")
    cpu = next(at for at, device in enumerate(cluster.devices) if device.kind == "xeon")
    problem = Problem(graph, cluster)
    on_cpu = [path.startswith("layers.0") for path in graph.modules]
    found = project(problem, np.where(on_cpu, cpu, 1 - cpu))
    assert found.devices["layers.0"] == "cpu"
    is_source = graph.is_source
    assert set(found.device_of[np.array(on_cpu) & is_source]) == {cpu}
    assert set(found.device_of[~is_source]) == {1 - cpu}


def test_an_export_says_where_one_device_is_faster(capsys: pytest.CaptureFixture[str]) -> None:
    graph = graph_of(Tied(), IDS)
    problem = Problem(graph, get_cluster("4xv100"))
    apart = np.array([2 if path.startswith("layers") else 1 for path in graph.modules])
    text = export_text("accelerate", PlacedModules(problem, Placement(apart)))
    assert set(json.loads(text).values()) == {1, 2}
    said = capsys.readouterr().err
    assert 'one device is faster: {"": 0} takes ' in said
    assert said.startswith("Tied: device map: ")
    export_text("accelerate", PlacedModules(problem, Placement(np.zeros_like(apart))))
    assert not capsys.readouterr().err


def test_tied_paths_are_kept_in_files(tmp_path: Path) -> None:
    graph = graph_of(SharedBuffer(), X)
    acts = tuple(f"layers.{at}.act" for at in range(4))
    assert set(graph.tied) == {("first.running_mean", "last.running_mean"), acts}
    write_graphs(tmp_path / "graph.json", [graph])
    assert read_graphs(tmp_path / "graph.json")[0].tied == graph.tied
