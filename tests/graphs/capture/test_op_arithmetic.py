"""The dtype of each op's arithmetic and the matrix products behind ops, read off captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.capture.capture import capture
from graphs.op_graph import OpGraph
from tests.graphs.capture.capture_cases import Once


def gemms(graph: OpGraph, kind: str) -> list[list[int]]:
    return [graph.gemm[op].tolist() for op in range(graph.n_ops) if graph.op_types[op] == kind]


def dtypes(graph: OpGraph) -> dict[str, str]:
    return dict(zip(graph.op_names, graph.dtypes, strict=True))


def test_a_linear_layer_is_one_product_forward_and_two_backward() -> None:
    graph = capture(Once(F.linear, (3, 4), (8, 4), (8,)), ())
    assert gemms(graph, "aten.addmm") == [[1, 3, 8, 4]]
    assert gemms(graph, "aten.mm") == [[1, 3, 4, 8], [1, 8, 4, 3]]


def test_batched_products_have_a_batch() -> None:
    graph = capture(Once(torch.bmm, (5, 3, 4), (5, 4, 2)), ())
    assert gemms(graph, "aten.bmm") == [[5, 3, 2, 4], [5, 4, 2, 3], [5, 3, 4, 2]]


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_is_its_implicit_product_and_twice_that_backward(groups: int) -> None:
    function = lambda x, w: F.conv2d(x, w, padding=1, groups=groups)  # noqa: E731
    graph = capture(Once(function, (2, 8, 5, 6), (12, 8 // groups, 3, 3)), ())
    extents = [2 * 5 * 6, 12 // groups, 8 // groups * 9]
    assert gemms(graph, "aten.convolution") == [[groups, *extents]]
    assert gemms(graph, "aten.convolution_backward") == [[2 * groups, *extents]]


def test_a_transposed_convolution_multiplies_at_the_positions_of_its_input() -> None:
    function = lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2)  # noqa: E731
    graph = capture(Once(function, (2, 4, 5, 5), (4, 3, 3, 3)), ())
    assert gemms(graph, "aten.convolution") == [[2, 2 * 25, 3 * 9, 2]]
    assert not graph.image.any()


@pytest.mark.parametrize(
    ("settings", "kernel", "image"),
    [
        ({"padding": 1}, 3, [5, 6]),
        ({}, 3, [3, 4]),
        ({}, 1, [0, 0]),
        ({"stride": 2}, 3, [0, 0]),
        ({"dilation": 2}, 3, [0, 0]),
        ({"groups": 4}, 3, [0, 0]),
    ],
)
def test_a_plain_three_by_three_convolution_has_its_image(
    settings: dict[str, int], kernel: int, image: list[int]
) -> None:
    function = lambda x, w: F.conv2d(x, w, **settings)  # noqa: E731
    weight = (12, 8 // settings.get("groups", 1), kernel, kernel)
    graph = capture(Once(function, (2, 8, 5, 6), weight), ())
    for kind in ("aten.convolution", "aten.convolution_backward"):
        assert [graph.image[op].tolist() for op in range(graph.n_ops) if graph.op_types[op] == kind] == [
            image
        ]


def test_attention_has_its_heads_lengths_and_width() -> None:
    shapes = [(2, 3, length, 4) for length in (5, 7, 7)]
    graph = capture(Once(F.scaled_dot_product_attention, *shapes), ())
    kind = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert gemms(graph, kind) == gemms(graph, f"{kind}_backward") == [[6, 5, 7, 4]]


class Everything(nn.Module):
    """Convolutions, plain and transposed, with and without groups, products, an LSTM cell, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, groups=2)
        self.cell = nn.LSTMCell(4, 4)
        self.head = nn.Bilinear(4, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.up(self.depthwise(self.first(images))).mean((2, 3))
        return self.head(self.cell(maps)[0], maps @ torch.ones(4, 4, dtype=maps.dtype))


@pytest.mark.parametrize("training", [True, False])
def test_twice_the_extents_are_the_flops_of_every_product(training: bool) -> None:
    graph = capture(Everything(), torch.zeros(2, 3, 13, 13), training=training)
    has_product = graph.gemm.any(axis=1)
    assert has_product.sum() > 5
    np.testing.assert_array_equal(2 * graph.gemm.prod(axis=1)[has_product], graph.flops[has_product])
    convolutions = [op for op, kind in enumerate(graph.op_types) if "convolution" in kind]
    assert has_product[convolutions].all()


def test_products_are_in_fp32_and_convolutions_in_tf32_as_pytorch_sets_them() -> None:
    graph = capture(Everything(), torch.zeros(2, 3, 13, 13))
    kinds = dict(zip(graph.op_types, graph.dtypes, strict=True))
    assert (kinds["aten.convolution"], kinds["aten.convolution_backward"]) == ("tf32", "tf32")
    assert {kinds["aten.addmm"], kinds["aten.mm"], kinds["aten.sum"], kinds["optim.adam"]} == {"fp32"}
    assert (kinds["parameter"], kinds["input"]) == ("fp32", "fp32")


@pytest.mark.parametrize(
    ("convert", "dtype"), [(nn.Module.bfloat16, "bf16"), (nn.Module.half, "fp16"), (nn.Module.double, "fp64")]
)
def test_a_module_of_another_precision_computes_in_it(
    convert: Callable[[nn.Module], nn.Module], dtype: str
) -> None:
    module = convert(Everything())
    graph = capture(module, torch.zeros(2, 3, 13, 13, dtype=module.head.weight.dtype))
    assert set(graph.dtypes) == {dtype}


def test_an_op_has_the_dtype_of_its_widest_floats() -> None:
    def mixed(weight: Tensor, tokens: Tensor) -> Tensor:
        halves = F.embedding(tokens, weight).bfloat16()
        return torch.where(tokens[:, None] > 1, halves.sin(), halves).float() + torch.arange(4)

    found = dtypes(capture(Once(mixed, (10, 4)), torch.zeros(3, dtype=torch.long), training=False))
    assert found == {
        "held.0": "fp32",
        "input.0": "int",
        "embedding": "fp32",
        "_to_copy": "fp32",
        "gt": "int",
        "sin": "bf16",
        "where": "bf16",
        "_to_copy_1": "fp32",
        "arange": "int",
        "add": "fp32",
    }
