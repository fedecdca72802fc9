"""Capturing modules: graphs counted by hand, what is folded and colocated, what cannot be captured."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphs.capture import tracing
from graphs.capture.capture import CaptureError, capture
from graphs.errors import printable
from graphs.io.graph_files import graph_to_json, read_graphs, write_graphs
from graphs.op_graph import OpGraph

GB = 10**9


class Mlp(nn.Module):
    """Two linear layers without a loss; its outputs are (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Calls(nn.Module):
    """A linear layer within any function of the layer and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(4, 4)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.layer, *inputs)


class Convnet(nn.Module):
    """Convolution, batch norm and pooling with a cross-entropy loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = F.relu(self.norm(self.conv(images)))
        return F.cross_entropy(self.head(features.mean((2, 3))), labels)


class TiedLm(nn.Module):
    """An embedding whose weights are the head's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embed(tokens)), tokens)


CONVNET_INPUTS = (torch.zeros(2, 3, 6, 6), torch.zeros(2, dtype=torch.long))


def op(graph: OpGraph, name: str) -> int:
    return graph.op_names.index(name)


def named(graph: OpGraph, ops: Any) -> list[str]:
    return [graph.op_names[index] for index in ops]


def readers(graph: OpGraph, name: str) -> list[str]:
    return named(graph, graph.successors.row(op(graph, name)))


@pytest.fixture(scope="module")
def mlp() -> OpGraph:
    return capture(Mlp(), torch.zeros(3, 4), family="hand")


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
    assert (mlp.name, mlp.family) == ("Mlp", "hand")


def test_tensors_of_an_mlp_reach_their_readers_through_views(mlp: OpGraph) -> None:
    assert readers(mlp, "fc1.weight") == ["fc1/addmm"]  # as a transpose
    assert readers(mlp, "fc2.weight") == ["fc2/addmm", "gradients/fc2/mm"]
    assert readers(mlp, "input.0") == ["fc1/addmm", "gradients/fc1/mm"]
    assert readers(mlp, "act/relu") == [
        "fc2/addmm",
        "gradients/fc2/mm_1",
        "gradients/act/threshold_backward",
    ]
    assert readers(mlp, "mean") == ["gradients/ones_like"]
    assert readers(mlp, "gradients/fc2/mm_1") == ["adam/fc2.weight"]


def test_backward_ops_keep_the_module_that_caused_them(mlp: OpGraph) -> None:
    assert mlp.modules[op(mlp, "fc1/addmm")] == "fc1"
    assert mlp.modules[op(mlp, "gradients/fc1/mm")] == "fc1"
    assert mlp.modules[op(mlp, "adam/fc1.weight")] == "fc1"


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

    graph = capture(Last(4, 4), torch.zeros(5, 2, 4))
    assert graph.op_types.count("aten.tanh") == 2 * 5
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


def test_inputs_may_be_a_mapping_or_nested(mlp: OpGraph) -> None:
    by_name = capture(Mlp(), {"x": torch.zeros(3, 4)})
    assert by_name.op_names == mlp.op_names
    nested = capture(Calls(lambda layer, pair, scale: layer(pair[0]) * scale), ([torch.zeros(2, 4)], 2))
    assert nested.op_types.count("input") == 1


def turned_phase(layer: nn.Module, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(layer(x))
    return torch.fft.irfft(spectrum * torch.exp(1j * spectrum.angle()), n=4)


def polar(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.polar(layer(x).abs(), layer(x)).abs()


def conjugates(layer: nn.Module, x: Tensor) -> Tensor:
    z = torch.view_as_complex(layer(x).reshape(-1, 2, 2))
    return torch.view_as_real(z * z.conj())


def imaginary(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(layer(x), layer(x))
    return (z @ z.mH).real, z.conj().imag.exp()


def complex_output(layer: nn.Module, x: Tensor) -> Tensor:
    return (layer(x) * 1j).conj()


def complex_scalar(layer: nn.Module, x: Tensor) -> Tensor:
    return (layer(x) * 1j).sum()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "function", [turned_phase, polar, conjugates, imaginary, complex_output, complex_scalar]
)
def test_complex_models_are_captured(function: Callable[..., Any], training: bool) -> None:
    graph = capture(Calls(function), torch.zeros(2, 4), training=training)
    assert "layer/addmm" in graph.op_names
    assert ("adam/layer.weight" in graph.op_names) == training
    assert np.isfinite(graph.flops).all()


def test_complex_tensors_take_eight_bytes_an_element_through_their_views() -> None:
    graph = capture(Calls(turned_phase), torch.zeros(2, 4), training=False)
    spectrum = 2 * 3 * 8  # three frequencies of each of two signals
    made = {name: graph.tensor_bytes[graph.outputs.row(op(graph, name))].tolist() for name in graph.op_names}
    assert made["_fft_r2c"] == made["exp"] == made["mul_1"] == [spectrum]
    assert made["angle"] == [spectrum / 2]
    assert graph.bytes_moved[op(graph, "mul_1")] == 3 * spectrum
    assert readers(graph, "_fft_r2c") == ["angle", "mul_1"]


def test_a_conjugate_is_a_view_until_it_is_computed() -> None:
    graph = capture(Calls(imaginary), torch.zeros(2, 4))
    assert "aten._conj" not in graph.op_types
    assert readers(graph, "complex") == ["mm", "clone", "gradients/mm", "gradients/mm_1"]
    assert readers(graph, "clone")[0] == "exp"  # the negated imaginary part
    turned = capture(Calls(turned_phase), torch.zeros(2, 4))
    assert "gradients/clone" in readers(turned, "_fft_r2c")


def test_a_complex_parameter_is_updated_as_two_numbers() -> None:
    module = Calls(lambda layer, x: layer.scale * layer(x))
    module.layer.scale = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
    graph = capture(module, torch.zeros(2, 4))
    assert graph.resident_bytes[op(graph, "layer.scale")] == 4 * 4 * 8
    assert graph.flops[op(graph, "adam/layer.scale")] == 10 * 4 * 2


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda layer, x: layer(x) if x.sum() > 0 else x, "aten._local_scalar_dense"),
        (lambda layer, x: layer(x) * x.sum().item(), "aten._local_scalar_dense"),
        (lambda layer, x: layer(x)[x[:, 0] > 0], "aten.nonzero"),
        (lambda layer, x: layer(x.T), "must have same reduction dim"),
        (lambda layer, x: x.long(), "no float tensor"),
        (lambda layer, x: {}["key"], "KeyError: 'key'"),
    ],
)
def test_what_cannot_be_captured_says_why_in_one_line(
    function: Callable[..., Any], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Calls(function), torch.zeros(2, 4), name="mine")
    message = str(caught.value)
    assert message.startswith("model 'mine' cannot be captured: ")
    assert reason in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_module_that_cannot_be_copied_says_so() -> None:
    with pytest.raises(CaptureError, match=r"model 'LazyLinear' cannot be captured: a copy .* uninitialized"):
        capture(nn.LazyLinear(3), torch.zeros(2, 4))


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(
        CaptureError, match=r"unknown optimizer 'lion'; use one of adam, sgd, adamw, adafactor, or None"
    ):
        capture(Mlp(), torch.zeros(3, 4), optimizer="lion")


BRANCHES = {
    "x.sum().item()": "aten._local_scalar_dense",
    "x[x > 0]": "aten.nonzero",
    "x.nonzero()": "aten.nonzero",
    "bool(x.sum() > 0)": "aten._local_scalar_dense",
}


def load_model(file: Path, expression: str) -> nn.Module:
    """A model in a file of its own that needs values in line 9."""
    lines = [
        "from torch import nn",
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.layer = nn.Linear(4, 4)",
        "    def forward(self, x):",
        "        return self.layer(x) + self.helper(x)",
        "    def helper(self, x):",
        f"        return {expression}",
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location("models", file)
    assert spec is not None
    assert spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    module: nn.Module = models.Net()
    return module


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("expression", BRANCHES)
def test_an_op_that_needs_values_is_named_with_its_line(
    expression: str, training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_model(tmp_path / "sub" / "models.py", expression)
    reason = re.escape(f"models.py:9: needs the values that {BRANCHES[expression]}.default yields")
    with pytest.raises(CaptureError, match=re.escape(f"captured: {tmp_path}/sub/") + reason):
        capture(module, torch.zeros(2, 4), training=training)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaptureError, match="^model 'Net' cannot be captured: sub/" + reason):
        capture(module, torch.zeros(2, 4), training=training)


def test_an_error_in_an_installed_model_is_named_with_the_line_of_the_package_or_of_its_user(
    tmp_path: Path,
) -> None:
    installed = load_model(tmp_path / "site-packages" / "zoo" / "net.py", "x.sum().item()")
    with pytest.raises(CaptureError, match=r"captured: zoo/net\.py:9: needs the values"):
        capture(installed, torch.zeros(2, 4))
    user = load_model(tmp_path / "mine.py", "self.net(x)")
    user.net = installed
    with pytest.raises(CaptureError, match=r"/mine\.py:9: needs the values"):
        capture(user, torch.zeros(2, 4))


def test_any_error_of_a_model_is_named_with_its_line(tmp_path: Path) -> None:
    module = load_model(tmp_path / "mine.py", "x @ x")
    with pytest.raises(CaptureError, match=r"/mine\.py:9: RuntimeError: .* same reduction dim"):
        capture(module, torch.zeros(2, 4))


class FakeOnly(Mlp):
    """Branches on values of any tensor that is not plainly fake; the joint trace wraps them."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if isinstance(x, FakeTensor) or x.sum() > 0 else -x)


def test_a_fallback_to_the_plain_trace_says_so_in_one_line(
    mlp: OpGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    notices: list[str] = []
    graph = capture(FakeOnly(), torch.zeros(3, 4), notify=notices.append)
    assert graph.flops.sum() == mlp.flops.sum()
    assert "addmm" in graph.op_names
    (notice,) = notices
    assert re.fullmatch(
        r"model 'FakeOnly': module names are lost, since torch's joint trace failed with .*"
        r"test_capture\.py:\d+: needs the values that aten\._local_scalar_dense.*; placements stay valid",
        notice,
    )
    assert capsys.readouterr() == ("", "")
    capture(FakeOnly(), torch.zeros(3, 4))
    assert capsys.readouterr() == ("", f"{notice}\n")


def test_the_joint_trace_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    capture(Mlp(), torch.zeros(3, 4))
    assert capsys.readouterr() == ("", "")


def test_a_model_that_checks_values_unless_compiled_keeps_its_module_names() -> None:
    def checked(layer: nn.Module, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and x.isnan().any():
            raise ValueError("x has NaNs")
        return layer(x)

    notices: list[str] = []
    graph = capture(Calls(checked), torch.zeros(2, 4), notify=notices.append)
    unchecked = capture(Calls(lambda layer, x: layer(x)), torch.zeros(2, 4), name=graph.name)
    assert fingerprint(graph) == fingerprint(unchecked)
    assert notices == []
    assert not torch.compiler.is_compiling()


def test_the_private_trace_is_tested_on_this_torch() -> None:
    assert torch.__version__.startswith(tracing.TESTED_TORCH)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Mlp(), (torch.zeros(3, 4),)),
        (Convnet(), CONVNET_INPUTS),
        (TiedLm(), (torch.zeros(6).long(),)),
        (Calls(polar), (torch.zeros(2, 4),)),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_the_plain_trace_agrees_with_the_joint_one(
    module: nn.Module, inputs: tuple[Tensor, ...], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint = capture(module, inputs, training=training)
    monkeypatch.setattr(tracing, "trace_joint", lambda step: 1 / 0)
    plain = capture(module, inputs, training=training)
    assert plain.flops.sum() == joint.flops.sum()
    assert plain.resident_bytes.sum() == joint.resident_bytes.sum()
    assert plain.phases == joint.phases


def fingerprint(graph: OpGraph) -> str:
    """Everything a graph holds but measured seconds."""
    texts = (graph.op_names, graph.op_types, graph.modules, graph.phases)
    costs = (graph.flops, graph.bytes_moved, graph.resident_bytes, graph.colocate)
    edges = (graph.tensor_producer, graph.tensor_bytes, graph.consumers.ptr, graph.consumers.items)
    return repr([*texts, *(array.tolist() for array in (*costs, *edges))])


def test_another_process_captures_the_same_graph() -> None:
    code = (
        "from tests.graphs.capture.test_capture import *\n"
        "print(fingerprint(capture(Convnet(), CONVNET_INPUTS)))"
    )
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert other.stdout.strip() == fingerprint(capture(Convnet(), CONVNET_INPUTS))


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
