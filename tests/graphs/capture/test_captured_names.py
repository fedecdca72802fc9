"""Names that cannot be printed are escaped, and stay distinct."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from graphs.capture.capture import capture
from graphs.io.graph_files import graph_to_json, read_graphs, write_graphs
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

    graph = capture(Named(), {name: torch.zeros(2, 4)}, name=f"model {name}", family=name)
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
