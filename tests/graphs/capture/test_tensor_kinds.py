"""Complex and sparse tensors: their bytes and views; tensors of unknown size are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agent import place
from graphs.capture.capture import capture
from graphs.capture.loss import CaptureError
from graphs.op_graph import OpGraph
from tests.graphs.capture.capture_cases import Calls, Once, op, readers


def turned_phase(layer: nn.Module, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(layer(x))
    return torch.fft.irfft(spectrum * torch.exp(1j * spectrum.angle()), n=4)


def conjugates(layer: nn.Module, x: Tensor) -> Tensor:
    z = torch.view_as_complex(layer(x).reshape(-1, 2, 2))
    return torch.view_as_real(z * z.conj())


def imaginary(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(layer(x), layer(x))
    return (z @ z.mH).real, z.conj().imag.exp()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        *(turned_phase, conjugates, imaginary),
        lambda layer, x: torch.polar(layer(x).abs(), layer(x)).abs(),
        lambda layer, x: (layer(x) * 1j).conj(),
        lambda layer, x: (layer(x) * 1j).sum(),
    ],
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


pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
N, WIDTH = 8, 4
DENSE = torch.zeros(N, N)
DENSE[[0, 3, 5], [1, 2, 5]] = 1.0
LAYOUTS: dict[str, tuple[Callable[[], Tensor], int, int]] = {
    "coo": (DENSE.to_sparse_coo, 3, 3 * (2 * 8 + 4)),
    "csr": (DENSE.to_sparse_csr, 3, (9 + 3) * 8 + 3 * 4),
    "csc": (DENSE.to_sparse_csc, 3, (9 + 3) * 8 + 3 * 4),
    "bsr": (lambda: DENSE.to_sparse_bsr((2, 2)), 12, (5 + 3) * 8 + 12 * 4),
    "bsc": (lambda: DENSE.to_sparse_bsc((2, 2)), 12, (5 + 3) * 8 + 12 * 4),
}
"""Maker of each layout, and the numbers and bytes that it stores."""


class Layer(nn.Module):
    """A product with an adjacency matrix, which is an input, a buffer or a frozen parameter."""

    def __init__(self, kind: str, adjacency: Tensor) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False)
        if kind == "buffer":
            self.register_buffer("adjacency", adjacency)
        elif kind == "parameter":
            self.adjacency = nn.Parameter(adjacency, requires_grad=False)

    def forward(self, x: Tensor, adjacency: Tensor | None = None) -> Tensor:
        factor = self.adjacency if adjacency is None else adjacency
        hidden = self.inner(x)
        return hidden.t() @ factor if factor.layout is torch.sparse_bsc else factor @ hidden


def captured(layout: str, kind: str, *, training: bool) -> OpGraph:
    adjacency = LAYOUTS[layout][0]()
    inputs = (torch.zeros(N, WIDTH), adjacency) if kind == "input" else (torch.zeros(N, WIDTH),)
    return capture(Layer(kind, adjacency), inputs, training=training, notify=lambda line: None)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["input", "buffer", "parameter"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_matrix_costs_what_it_stores(layout: str, kind: str, training: bool) -> None:
    graph = captured(layout, kind, training=training)
    _, numbers, stored = LAYOUTS[layout]
    source = next(op for op, name in enumerate(graph.op_names) if name in ("adjacency", "input.1"))
    assert graph.tensor_bytes[graph.outputs.row(source)].tolist() == [stored]
    assert graph.resident_bytes[source] == (0 if kind == "input" else stored)
    products = [op for op in graph.successors.row(source).tolist() if graph.op_types[op] == "aten.mm"]
    assert len(products) == (2 if training else 1)
    assert set(graph.flops[products]) == {2.0 * numbers * WIDTH}
    assert not graph.gemm[products].any()
    dense_bytes = graph.bytes_moved[products] - stored
    assert (dense_bytes == 2 * N * WIDTH * 4).all()


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_parts_of_a_sparse_tensor_are_refused(layout: str) -> None:
    class Sum(Layer):
        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            values = adjacency.values() if layout == "csr" else adjacency._values()
            return self.inner(x) * values[None].sum()

    with pytest.raises(CaptureError, match=r"values.default reads parts of a sparse tensor; give them as"):
        capture(Sum("input", DENSE), (torch.zeros(N, WIDTH), LAYOUTS[layout][0]()), training=False)


def test_elementwise_ops_on_sparse_tensors_count_stored_numbers() -> None:
    scaled = Once(lambda x, adjacency: torch.sparse.mm(adjacency * 2, x))
    graph = capture(scaled, (torch.zeros(N, WIDTH), DENSE.to_sparse_coo()), training=False)
    assert graph.flops[graph.op_types.index("aten.mul")] == 3
    assert graph.flops[graph.op_types.index("aten._sparse_addmm")] == 2 * 3 * WIDTH


def test_a_graph_network_on_a_large_sparse_matrix_is_placed() -> None:
    n, edges = 200_000, 1_000_000
    indices = torch.randint(0, n, (2, edges))
    adjacency = torch.sparse_coo_tensor(indices, torch.ones(edges), (n, n), check_invariants=False)
    plan = place(Layer("input", adjacency), (torch.zeros(n, WIDTH), adjacency), placer="single", budget=5)
    assert plan.step_time.fits
    assert plan.graph.flops.max() <= 2 * edges * max(WIDTH, 16)


def nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, WIDTH), torch.ones(3, WIDTH)], layout=torch.jagged)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (nested, "a NestedTensor (nested), whose stored size is not known; give a dense tensor"),
        (lambda: DENSE.to_mkldnn(), "a Tensor (torch._mkldnn), whose stored size is not known"),
        (
            lambda: DENSE.to_sparse_csr().to("meta"),
            "sparse on the meta device, where `.to()` loses its values",
        ),
    ],
)
def test_a_tensor_of_unknown_size_is_refused_by_name(make: Callable[[], Tensor], why: str) -> None:
    tensor = make()
    with pytest.raises(CaptureError) as error:
        place(Layer("input", tensor), (torch.zeros(N, WIDTH), tensor), name="m")
    assert str(error.value).startswith(f"model 'm' cannot be captured: input [1] is {why}")
    with pytest.raises(CaptureError, match=r"^model 'm' cannot be captured: 'deep.adjacency' is "):
        capture(nn.ModuleDict({"deep": Layer("buffer", tensor)}), torch.zeros(N, WIDTH), name="m")


def test_a_sparse_tensor_with_a_gradient_is_refused_by_name() -> None:
    adjacency = DENSE.to_sparse_coo().requires_grad_()
    with pytest.raises(CaptureError, match=r"input \[1\] is sparse and has a gradient; give it dense"):
        capture(Layer("input", adjacency), (torch.zeros(N, WIDTH), adjacency))
    assert np.isfinite(
        capture(Layer("input", adjacency), (torch.zeros(N, WIDTH), adjacency), training=False).flops
    ).all()
