"""Costs of single ops, read off captured graphs."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.capture.capture import capture
from graphs.op_graph import OpGraph


class Once(nn.Module):
    """One function of trainable tensors, then of the inputs."""

    def __init__(self, function: object, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.held = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*self.held, *inputs)  # type: ignore[operator]


def cost(graph: OpGraph, kind: str) -> tuple[float, float]:
    index = graph.op_types.index(kind)
    return graph.flops[index], graph.bytes_moved[index]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolution_backward_is_twice_forward_whatever_the_groups(groups: int) -> None:
    function = lambda x, w: F.conv2d(x, w, padding=1, groups=groups)  # noqa: E731
    graph = capture(Once(function, (2, 8, 5, 5), (12, 8 // groups, 3, 3)), ())
    forward, _ = cost(graph, "aten.convolution")
    assert forward == 2 * 2 * 25 * 12 * (8 // groups) * 9
    assert cost(graph, "aten.convolution_backward")[0] == 2 * forward


def test_convolution_backward_without_an_input_gradient_equals_forward() -> None:
    graph = capture(nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8))
    assert cost(graph, "aten.convolution_backward")[0] == cost(graph, "aten.convolution")[0]


def test_transposed_convolution_backward_is_twice_forward() -> None:
    function = lambda x, w: F.conv_transpose2d(x, w, stride=2)  # noqa: E731
    graph = capture(Once(function, (2, 4, 5, 5), (4, 6, 3, 3)), ())
    forward, _ = cost(graph, "aten.convolution")
    assert forward == 2 * 2 * 25 * 4 * 6 * 9
    assert cost(graph, "aten.convolution_backward")[0] == 2 * forward


def test_attention_counts_two_products_forward_and_five_backward() -> None:
    batch, heads, queries, keys, width = 2, 3, 5, 7, 4
    shapes = [(batch, heads, length, width) for length in (queries, keys, keys)]
    graph = capture(Once(F.scaled_dot_product_attention, *shapes), ())
    product = 2 * batch * heads * queries * keys * width
    forward = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert cost(graph, forward)[0] == 2 * product
    assert cost(graph, f"{forward}_backward")[0] == 5 * product
    scores = 4 * batch * heads * queries  # the log-sum-exp of each row, not the matrix
    read = 4 * batch * heads * width * (queries + 2 * keys)
    assert cost(graph, forward)[1] == read + 4 * batch * heads * queries * width + scores


def test_an_embedding_reads_its_rows_not_its_table() -> None:
    graph = capture(nn.Embedding(1000, 8), torch.zeros(5, dtype=torch.long))
    assert cost(graph, "aten.embedding") == (0, 5 * 8 + 2 * 5 * 8 * 4)
    flops, moved = cost(graph, "aten.embedding_dense_backward")
    assert flops == 5 * 8
    assert moved == 5 * 8 + 5 * 8 * 4 + 1000 * 8 * 4


def test_a_slice_is_read_for_what_it_shows_and_an_expansion_for_what_it_holds() -> None:
    sliced = capture(Once(lambda x: x[:2].exp(), (10, 4)), (), training=False)
    assert cost(sliced, "aten.exp") == (8, 2 * 8 * 4)
    expanded = capture(Once(lambda x: x.expand(10, 4).exp(), (4,)), (), training=False)
    assert cost(expanded, "aten.exp") == (40, (4 + 40) * 4)
    twice = capture(Once(lambda x: x * x.T, (4, 4)), (), training=False)
    assert cost(twice, "aten.mul") == (16, 2 * 16 * 4)


def test_reductions_cost_their_input_and_copies_nothing() -> None:
    graph = capture(Once(lambda x: torch.cat([x, x]).sum(0), (5, 4)), (), training=False)
    assert cost(graph, "aten.sum") == (40, 40 * 4 + 4 * 4)
    assert cost(graph, "aten.cat") == (0, (20 + 40) * 4)


def test_half_precision_moves_half() -> None:
    full = capture(nn.Linear(8, 8), torch.zeros(4, 8))
    half = capture(nn.Linear(8, 8).half(), torch.zeros(4, 8).half())
    assert half.resident_bytes.sum() * 2 == full.resident_bytes.sum()
    assert cost(half, "aten.addmm")[1] * 2 == cost(full, "aten.addmm")[1]
    assert cost(half, "aten.addmm")[0] == cost(full, "aten.addmm")[0]


def complex_tensor(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.complex64)


def test_complex_products_count_the_real_operations_in_them() -> None:
    matrices = (complex_tensor(3, 4), complex_tensor(4, 5))
    product = capture(Once(lambda a, b: a @ b), matrices, training=False)
    assert cost(product, "aten.mm") == (8 * 3 * 4 * 5, 8 * (12 + 20 + 15))
    each = capture(Once(lambda a: a * a.mH), (complex_tensor(4, 4),), training=False)
    assert cost(each, "aten.mul")[0] == 6 * 16
    scaled = capture(Once(lambda a: a * 2 + 1), (complex_tensor(4, 4),), training=False)
    assert cost(scaled, "aten.mul")[0] == cost(scaled, "aten.add")[0] == 2 * 16


def test_fourier_transforms_count_five_n_log_n_and_half_for_real_signals() -> None:
    full = 5 * (3 * 16) * 4  # three signals of 16 elements
    z = capture(Once(torch.fft.fft), complex_tensor(3, 16), training=False)
    assert cost(z, "aten._fft_c2c") == (full, 2 * 3 * 16 * 8)
    real = capture(Once(lambda x: torch.fft.irfft(torch.fft.rfft(x))), (torch.zeros(3, 16),), training=False)
    assert cost(real, "aten._fft_r2c") == (full / 2, 3 * 16 * 4 + 3 * 9 * 8)
    assert cost(real, "aten._fft_c2r")[0] == full / 2
    plane = capture(Once(torch.fft.fft2), (complex_tensor(4, 8),), training=False)
    assert cost(plane, "aten._fft_c2c")[0] == 5 * 32 * 5
