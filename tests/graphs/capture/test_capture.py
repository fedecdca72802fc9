"""Capturing modules: graphs counted by hand, what is folded, colocated and named, what inputs may be."""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from graphs.capture.capture import CaptureError, capture, capture_step
from graphs.identity import content_hash
from graphs.io.graph_files import graph_to_json, read_graphs, write_graphs
from graphs.op_graph import OpGraph
from graphs.system.errors import printable
from tests.graphs.capture.capture_cases import Calls, Mlp, TiedLm, fingerprint, heard, op, readers

GB = 10**9


class Masked(nn.Module):
    """Reads two inputs."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (x * mask).mean()


@pytest.fixture(scope="module")
def mlp() -> OpGraph:
    return capture(Mlp(), torch.zeros(3, 4))


# name, type, phase, flops, bytes moved, resident bytes, colocation, output bytes; float32, batch 3
MLP = [
    ("fc1.bias", "parameter", "forward", 0, 0, 4 * 32, 0, [32]),
    ("input.0", "input", "forward", 0, 0, 0, 0, [48]),
    ("fc1.weight", "parameter", "forward", 0, 0, 4 * 128, 0, [128]),
    ("fc1/addmm", "aten.addmm", "forward", 2 * 3 * 4 * 8, 32 + 48 + 128 + 96, 0, 0, [96]),
    ("act/relu", "aten.relu", "forward", 24, 96 + 96, 0, -1, [96]),
    ("fc2.bias", "parameter", "forward", 0, 0, 4 * 8, 1, [8]),
    ("fc2.weight", "parameter", "forward", 0, 0, 4 * 64, 1, [64]),
    ("fc2/addmm", "aten.addmm", "forward", 2 * 3 * 8 * 2, 8 + 96 + 64 + 24, 0, 1, [24]),
    ("mean", "aten.mean", "forward", 6, 24 + 4, 0, -1, [4]),
    ("gradients/ones_like", "aten.ones_like", "backward", 0, 4, 0, -1, [4]),
    ("gradients/div", "aten.div", "backward", 6, 4 + 24, 0, -1, [24]),
    ("gradients/fc2/mm", "aten.mm", "backward", 96, 24 + 64 + 96, 0, -1, [96]),
    ("gradients/fc2/mm_1", "aten.mm", "backward", 96, 24 + 96 + 64, 0, -1, [64]),
    ("gradients/fc2/sum", "aten.sum", "backward", 6, 24 + 8, 0, -1, [8]),
    ("gradients/act/threshold_backward", "aten.threshold_backward", "backward", 24, 3 * 96, 0, -1, [96]),
    ("gradients/fc1/mm", "aten.mm", "backward", 192, 96 + 48 + 128, 0, -1, [128]),
    ("gradients/fc1/sum", "aten.sum", "backward", 24, 96 + 32, 0, -1, [32]),
    ("adam/fc1.weight", "optim.adam", "optimizer", 10 * 32, 28 * 32, 0, 0, []),
    ("adam/fc1.bias", "optim.adam", "optimizer", 10 * 8, 28 * 8, 0, 0, []),
    ("adam/fc2.weight", "optim.adam", "optimizer", 10 * 16, 28 * 16, 0, 1, []),
    ("adam/fc2.bias", "optim.adam", "optimizer", 10 * 2, 28 * 2, 0, 1, []),
]


def test_every_op_of_an_mlp_is_as_counted_by_hand(mlp: OpGraph) -> None:
    found = [
        (
            *(mlp.op_names[i], mlp.op_types[i], mlp.phases[i]),
            *(mlp.flops[i], mlp.bytes_moved[i], mlp.resident_bytes[i], mlp.colocate[i]),
            mlp.tensor_bytes[mlp.outputs.row(i)].tolist(),
        )
        for i in range(mlp.n_ops)
    ]
    assert found == MLP
    assert mlp.name == "Mlp"


def test_tensors_of_an_mlp_reach_their_readers_through_views(mlp: OpGraph) -> None:
    assert readers(mlp, "fc1.weight") == ["fc1/addmm"]  # as a transpose
    assert readers(mlp, "fc2.weight") == ["fc2/addmm", "gradients/fc2/mm"]
    assert readers(mlp, "input.0") == ["fc1/addmm", "gradients/fc1/mm"]
    assert readers(mlp, "act/relu") == ["fc2/addmm", "gradients/fc2/mm_1", "gradients/act/threshold_backward"]
    assert readers(mlp, "mean") == ["gradients/ones_like"]
    assert readers(mlp, "gradients/fc2/mm_1") == ["adam/fc2.weight"]


def test_a_placement_unit_is_an_owner_op_with_its_sources_and_updates(mlp: OpGraph) -> None:
    unit = mlp.unit_of
    assert unit[op(mlp, "fc1.weight")] == unit[op(mlp, "fc1/addmm")] == unit[op(mlp, "adam/fc1.bias")]
    assert unit[op(mlp, "fc1/addmm")] != unit[op(mlp, "gradients/fc1/mm")]
    assert not mlp.is_compute[op(mlp, "adam/fc1.weight")]


def test_without_an_optimizer_the_gradients_stay_resident() -> None:
    graph = capture(Mlp(), torch.zeros(3, 4), optimizer=None)
    assert "optimizer" not in graph.phases
    assert graph.resident_bytes.sum() == 2 * 4 * (32 + 8 + 16 + 2)
    assert graph.tensor_bytes[graph.outputs.row(op(graph, "gradients/fc1/mm"))] == [128]


def test_inference_is_the_forward_pass_with_weights_only() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    graph = capture(module, torch.zeros(3, 4), training=False)
    assert set(graph.phases) == {"forward"}
    assert [kind for kind in graph.op_types if kind.startswith("aten")] == [
        "aten.addmm",
        "aten._native_batch_norm_legit_no_training",
    ]
    assert graph.resident_bytes.sum() == sum(t.nbytes for t in module.state_dict().values())
    assert module.training


def test_a_tied_weight_is_one_parameter_with_one_summed_gradient() -> None:
    graph = capture(TiedLm(), torch.zeros(6, dtype=torch.long))
    assert [
        name for name, kind in zip(graph.op_names, graph.op_types, strict=True) if kind == "parameter"
    ] == ["embed.weight"]
    assert graph.resident_bytes.sum() == 4 * 4 * 40
    update = op(graph, "adam/embed.weight")
    (gradient,) = graph.predecessors.row(update)
    assert graph.op_types[gradient] == "aten.add"
    assert "head/mm" in readers(graph, "embed.weight")
    assert graph.colocate[update] == graph.colocate[op(graph, "embed/embedding")]
    assert graph.colocate[op(graph, "head/mm")] == -1


def test_a_parameter_used_again_is_colocated_with_its_first_user_only() -> None:
    graph = capture(Calls(lambda layer, x: layer(layer(x))), torch.zeros(2, 4))
    assert graph.colocate[op(graph, "layer/addmm")] == graph.colocate[op(graph, "layer.weight")]
    assert graph.colocate[op(graph, "layer@1/addmm")] == -1
    assert graph.modules[op(graph, "layer@1/addmm")] == "layer"


def test_a_frozen_parameter_keeps_its_weights_alone() -> None:
    module = Mlp()
    module.fc1.requires_grad_(False)
    graph = capture(module, torch.zeros(3, 4))
    assert graph.resident_bytes[op(graph, "fc1.weight")] == 128
    assert "adam/fc1.weight" not in graph.op_names
    assert not any(name.startswith("gradients/fc1") for name in graph.op_names)
    assert graph.colocate[op(graph, "fc1.weight")] == graph.colocate[op(graph, "fc1/addmm")]


def test_an_unused_parameter_still_takes_memory_and_an_unused_input_is_dropped() -> None:
    graph = capture(Calls(lambda layer, x, y: x @ layer.weight), (torch.zeros(2, 4), torch.zeros(2)))
    assert graph.resident_bytes[op(graph, "layer.bias")] == 16  # never gets a gradient
    assert readers(graph, "layer.weight")
    assert "input.1" not in graph.op_names
    assert graph.phases[op(graph, "layer.bias") + 1 :] == ("optimizer",)


def test_a_scalar_is_the_loss_and_float_outputs_are_averaged() -> None:
    scalar = capture(Calls(lambda layer, x: layer(x).sum()), torch.zeros(2, 4))
    assert "mean" not in scalar.op_names
    several = capture(
        Calls(lambda layer, x: {"a": layer(x), "b": (x.long(), layer(x).sum(0))}), torch.zeros(2, 4)
    )
    assert [name for name in several.op_names if name.startswith("mean")] == ["mean", "mean_1", "mean_2"]
    assert "_to_copy" not in several.op_names  # the integer output leads to no loss


def test_a_loss_that_is_a_view_is_differentiated() -> None:
    graph = capture(Calls(lambda layer, x: layer(x).sum(1)[0]), torch.zeros(2, 4))
    assert "adam/layer.weight" in graph.op_names
    bare = capture(Calls(lambda layer, x: layer.bias[0]), torch.zeros(2, 4))
    assert readers(bare, "layer.bias") == ["gradients/ones_like"]


def test_batch_norm_and_dropout_train() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    graph = capture(module, torch.zeros(3, 4))
    assert {"aten.native_dropout", "aten.native_dropout_backward"} <= set(graph.op_types)
    norm = op(graph, "2/_native_batch_norm_legit_functional")
    assert len(graph.outputs.row(norm)) == 5  # output, two statistics for backward, two running statistics
    assert graph.resident_bytes[op(graph, "2.running_mean")] == 16
    assert module[2].num_batches_tracked == 0


def test_what_is_changed_in_place_is_a_new_tensor() -> None:
    in_place = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.zeros(3, 4))
    plain = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.zeros(3, 4))
    assert (in_place.op_names, in_place.op_types) == (plain.op_names, plain.op_types)
    assert readers(in_place, "1/relu") == readers(plain, "1/relu")


def test_a_module_in_several_places_is_named_after_the_place_that_calls_it() -> None:
    act = nn.Tanh()
    layers = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act)
    graph = capture(nn.Sequential(layers, layers), torch.zeros(3, 4))
    names = [name for name in graph.op_names if name.endswith("tanh")]
    assert names == ["0.1/tanh", "0.3/tanh", "1.1/tanh", "1.3/tanh"]


def test_constants_in_the_model_are_inputs() -> None:
    graph = capture(Calls(lambda layer, x: layer(x) + torch.tensor([1.0, 2.0, 3.0, 4.0])), torch.zeros(2, 4))
    assert graph.op_types.count("input") == 2
    assert 16 in graph.tensor_bytes[graph.is_source[graph.tensor_producer]]


def test_an_lstm_is_unrolled() -> None:
    class Last(nn.LSTM):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)[0]

    graph, said = heard(Last(4, 4), torch.zeros(5, 2, 4))
    assert graph.op_types.count("aten.tanh") == 2 * 5
    assert "model 'Last': Last: captured as ops of cells; cuDNN is faster on one GPU" in said
    inference = capture(Last(4, 4), torch.zeros(5, 2, 4), training=False)
    assert inference.op_types.count("aten.tanh") == 2 * 5


def test_a_model_on_meta_allocates_nothing() -> None:
    with torch.device("meta"):
        module, x = nn.Linear(100_000, 100_000), torch.zeros(8, 100_000)
    graph = capture(module, x)
    assert graph.resident_bytes.sum() > 160 * GB
    assert graph.flops.sum() > 2 * 2 * 8 * 1e10
    assert module.weight.is_meta


def test_meta_cpu_and_fake_modules_give_the_same_graph(mlp: OpGraph) -> None:
    with torch.device("meta"):
        inside = capture(Mlp(), torch.zeros(3, 4))
        module, x = Mlp(), torch.zeros(3, 4)
    outside = capture(module, x)
    with FakeTensorMode():
        fake_inside = capture(Mlp(), torch.zeros(3, 4))
        module, x = Mlp(), torch.zeros(3, 4)
    fake_outside = capture(module, x)
    for graph in (inside, outside, fake_inside, fake_outside):
        assert fingerprint(graph) == fingerprint(mlp)


def test_tensors_made_in_forward_are_on_the_cpu_whatever_device_is_in_force() -> None:
    with torch.device("meta"):
        graph = capture(Calls(lambda layer, x: layer(x) + torch.arange(4)), torch.zeros(2, 4))
    assert "aten.arange" in graph.op_types


def test_inputs_may_be_nested_and_numbers() -> None:
    nested = capture(Calls(lambda layer, pair, scale: layer(pair[0]) * scale), ([torch.zeros(2, 4)], 2))
    assert nested.op_types.count("input") == 1


@pytest.mark.parametrize("given", [list, tuple, UserDict])
def test_a_step_takes_what_its_capture_took_whole_or_by_argument(given: Callable[..., Any]) -> None:
    x, mask = torch.zeros(2, 4), torch.ones(2, 4)
    inputs = given({"x": x, "mask": mask}) if given is UserDict else given([x, mask])
    step = capture_step(Masked(), inputs, training=False).step
    by_argument = {"mask": mask, "x": x} if given is UserDict else (x, mask)
    for other in (inputs, (inputs,), by_argument):
        assert [tensor.sum() for tensor in step.flat_inputs(other)] == [0, 8]
    was = "x, mask by keyword" if given is UserDict else "2 by position"
    with pytest.raises(CaptureError, match=f"another structure than .* which were {was}; capture it anew"):
        step.flat_inputs((x, mask, mask))


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


def test_ops_have_the_line_of_the_module_that_called_torch_and_the_shape_that_they_make() -> None:
    graph = capture(Doubled(), torch.randn(2, 3))
    path = "tests/graphs/capture/test_capture.py"
    first = inspect.getsourcelines(Doubled.forward)[1]
    names = ("linear/addmm", "mul", "sum", "gradients/linear/mm", "gradients/mul")
    sources = [graph.sources[graph.op_names.index(name)] for name in names]
    assert sources == [f"{path}:{first + line}" for line in (1, 2, 2, 1, 2)]
    shape_of = dict(zip(graph.op_names, graph.shapes, strict=True))
    assert shape_of["linear/addmm"] == shape_of["mul"] == (2, 5)
    assert shape_of["sum"] == ()
    assert shape_of["linear.weight"] == (5, 3)
    plain = replace(graph, sources=(), shapes=())
    assert content_hash(plain) == content_hash(graph)
    assert not any({"source", "shape"} & op.keys() for op in graph_to_json(plain)["ops"])
    of_torch_alone = capture(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.randn(2, 3))
    assert set(of_torch_alone.sources) == {""}
