"""Captured ops have names that can be printed, the line of code that ran them, and the shape they make."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from graphs.capture.capture import capture
from graphs.identity import content_hash
from graphs.io.graph_files import graph_to_json, read_graphs, write_graphs
from graphs.op_graph import OpGraph
from graphs.system.errors import printable


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "\ud800", "\u2028", "é", " "], ids=ascii)
def test_names_that_cannot_be_printed_survive_the_round_trip(tmp_path: Path, name: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(4, 4))
            self.register_parameter(f"own {name}", nn.Parameter(torch.ones(4)))

        def forward(self, **inputs: Tensor) -> Tensor:
            return self._modules[name](inputs[name]) * self._parameters[f"own {name}"]

    graph = capture(Named(), {name: torch.zeros(2, 4)}, name=f"model {name}")
    assert graph.name == f"model {printable(name)}"
    assert printable(name) in graph.modules
    assert f"{printable(name)}.weight" in graph.op_names
    write_graphs(tmp_path / "graph.json", [graph])
    assert graph_to_json(read_graphs(tmp_path / "graph.json")[0]) == graph_to_json(graph)


def test_names_that_are_escaped_alike_stay_distinct() -> None:
    module = nn.Sequential()
    module.add_module("a\nb", nn.Linear(4, 4))
    module.add_module(r"a\nb", nn.Linear(4, 4))
    graph = capture(module, torch.zeros(2, 4))
    assert [name for name in graph.op_names if "weight" in name and "adam" not in name] == [
        r"a\nb.weight",
        r"a\nb.weight_1",
    ]


class Doubled(nn.Module):
    """A linear layer and a product, each on a line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return (y * y).sum()


FIRST = inspect.getsourcelines(Doubled.forward)[1]


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return capture(Doubled(), torch.randn(2, 3))


def line_of(graph: OpGraph, name: str) -> int:
    path, _, number = graph.sources[graph.op_names.index(name)].rpartition(":")
    assert path.endswith("test_captured_names.py")
    assert not path.startswith("/")
    return int(number) - FIRST


def test_an_op_has_the_line_of_the_module_that_called_torch(graph):
    assert line_of(graph, "linear/addmm") == 1
    assert line_of(graph, "mul") == line_of(graph, "sum") == 2


def test_a_backward_op_has_the_line_of_its_forward_op(graph):
    assert line_of(graph, "gradients/linear/mm") == 1
    assert line_of(graph, "gradients/mul") == 2


def test_an_op_has_the_shape_that_it_makes(graph):
    shape_of = dict(zip(graph.op_names, graph.shapes, strict=True))
    assert shape_of["linear/addmm"] == shape_of["mul"] == (2, 5)
    assert shape_of["sum"] == ()
    assert shape_of["linear.weight"] == (5, 3)


def test_sources_and_shapes_change_nothing_else(graph):
    plain = replace(graph, sources=(), shapes=())
    assert content_hash(plain) == content_hash(graph)
    assert not any({"source", "shape"} & op.keys() for op in graph_to_json(plain)["ops"])


def test_modules_of_torch_alone_have_no_line():
    graph = capture(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.randn(2, 3))
    assert set(graph.sources) == {""}
