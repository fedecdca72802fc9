"""Every matrix product has the dtype, extents and flops of its factors; ops have that of their arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent import place
from envs.cluster.presets import get_cluster
from envs.costs.op_seconds import op_seconds
from graphs.capture.capture import capture
from graphs.capture.op_arithmetic import tensor_dtype
from graphs.graph_columns import DTYPES
from graphs.op_graph import OpGraph
from tests.graphs.capture.capture_cases import Once, heard


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


FP8, FP8_WIDE, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape).to(dtype)


def product_of(function: Callable[..., Any], *inputs: Tensor) -> tuple[str, list[int], float]:
    graph = capture(Once(function), inputs, training=False, notify=pytest.fail)
    (op,) = (op for op in range(graph.n_ops) if graph.gemm[op].any())
    return graph.dtypes[op], graph.gemm[op].tolist(), float(graph.flops[op])


def scaled(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch._scaled_mm(a, b.t(), x, y, out_dtype=BF16)


def grouped(a: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(a, w, offs=ends)


def scaled_by_groups(a: Tensor, w: Tensor, x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    return torch._scaled_grouped_mm(a, w.mT, x, y, offs=ends, out_dtype=BF16)


def of_packed(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    return torch._weight_int4pack_mm(x, w, 32, scales)


def wider(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b, out_dtype=torch.float32)


ONE, ROWS, COLUMNS = torch.ones(()), torch.ones(32, 1), torch.ones(1, 48)
ENDS = torch.tensor([8, 16, 32], dtype=torch.int32)
GEMM, HALF = [1, 32, 48, 64], torch.float16
ROWS_FP8, COLUMNS_FP8, ROWS_BF16 = (
    zeros(32, 64, dtype=FP8),
    zeros(48, 64, dtype=FP8),
    zeros(32, 64, dtype=BF16),
)
INT8 = zeros(32, 64, dtype=torch.int8), zeros(64, 48, dtype=torch.int8)
INT8_WEIGHTS = zeros(48, 64, dtype=torch.int8), zeros(48, dtype=BF16)
INT4_WEIGHTS = zeros(6, 1, 32, 4, dtype=torch.int32), zeros(2, 48, 2, dtype=BF16)
SPARSE = zeros(32, 32, dtype=HALF), zeros(32, 4, dtype=torch.int16), zeros(64, 48, dtype=HALF)
INNER, EXPERTS = zeros(16, 32, dtype=BF16), zeros(3, 16, 64, dtype=BF16)
FP8_EXPERTS = zeros(3, 48, 64, dtype=FP8), torch.ones(32), torch.ones(3, 48)
PRODUCTS: dict[str, tuple[Any, ...]] = {
    "fp8": ("fp8", GEMM, scaled, ROWS_FP8, COLUMNS_FP8, ONE, ONE),
    "fp8 by rows": ("fp8", GEMM, scaled, zeros(32, 64, dtype=FP8_WIDE), COLUMNS_FP8, ROWS, COLUMNS),
    "int8": ("int8", GEMM, torch._int_mm, *INT8),
    "int8 weights": ("bf16", GEMM, torch._weight_int8pack_mm, ROWS_BF16, *INT8_WEIGHTS),
    "int4 weights": ("bf16", GEMM, of_packed, ROWS_BF16, *INT4_WEIGHTS),
    "grouped rows": ("bf16", GEMM, grouped, ROWS_BF16, zeros(3, 64, 48, dtype=BF16), ENDS),
    "grouped inner": ("bf16", [1, 16, 48, 32], grouped, INNER, zeros(32, 48, dtype=BF16), ENDS),
    "grouped columns": ("bf16", [1, 16, 32, 64], grouped, EXPERTS, zeros(64, 32, dtype=BF16), ENDS),
    "grouped batch": ("bf16", [3, 16, 32, 64], torch._grouped_mm, EXPERTS, zeros(3, 64, 32, dtype=BF16)),
    "grouped fp8": ("fp8", GEMM, scaled_by_groups, ROWS_FP8, *FP8_EXPERTS, ENDS),
    "sum of products": ("fp32", [2, 3, 5, 4], torch.addbmm, zeros(3, 5), zeros(2, 3, 4), zeros(2, 4, 5)),
    "matrix and vector": ("fp32", [1, 3, 1, 5], torch.addmv, zeros(3), zeros(3, 5), zeros(5)),
    "wider result": ("bf16", [1, 3, 5, 4], wider, zeros(3, 4, dtype=BF16), zeros(4, 5, dtype=BF16)),
    "2:4 sparse": ("fp16", [1, 32, 48, 32], torch._sparse_semi_structured_mm, *SPARSE),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_the_dtype_extents_and_flops_of_its_factors(name: str) -> None:
    dtype, gemm, function, *inputs = PRODUCTS[name]
    assert product_of(function, *inputs) == (dtype, gemm, 2 * prod(gemm))


def test_a_product_of_three_operands_counts_each_combination() -> None:
    graph = capture(nn.Bilinear(4, 5, 6), (zeros(3, 4), zeros(3, 5)), training=False)
    assert graph.flops[graph.op_types.index("aten._trilinear")] == 2 * 3 * 4 * 5 * 6


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_all_types_of_floats_have_a_dtype_or_are_named() -> None:
    types = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    floats = [dtype for dtype in types if dtype.is_floating_point or dtype.is_complex]
    named = {dtype: tensor_dtype([torch.empty(1, dtype=dtype, device="meta")]) for dtype in floats}
    assert set(named.values()) <= set(DTYPES) - {"int", "int8"}
    assert named[torch.float8_e5m2] == "fp8"
    packed = torch.zeros(128, 64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    inputs = (packed, packed, zeros(1024, dtype=FP8), zeros(1024, dtype=FP8))
    graph, lines = heard(Once(scaled), inputs, training=False, name="m")
    assert lines == [
        "model 'm': torch.float4_e2m1fn_x2 is no type that the cost model knows; it is costed as fp8"
    ]
    assert max(graph.flops) == 2 * 128**3  # two numbers a byte


def test_devices_without_a_peak_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for cluster, is_said in (("4xh100-sxm5", False), ("4xv100", True)):
        _, _, function, *inputs = PRODUCTS["fp8"]
        place(Once(function), inputs, cluster=cluster, placer="single", budget=2, training=False)
        said = capsys.readouterr().err
        assert (
            "v100 has no peak for fp8; such ops are costed at that of fp16, else of fp32" in said
        ) == is_said


XS, WS = torch.zeros(8, 3, 16), torch.zeros(16, 5)
SHARED: dict[str, tuple[list[int], Callable[..., Any], Tensor, Tensor]] = {
    "right": ([1, 24, 5, 16], lambda x, w: x @ w.expand(8, 16, 5), XS, WS),
    "left": ([1, 5, 24, 16], lambda x, w: w.t() @ x.mT, XS, WS),
    "not folded by torch": ([1, 24, 5, 16], lambda x, w: x.transpose(0, 1) @ w, XS.view(3, 8, 16), WS),
    "several batches": ([1, 24, 5, 16], lambda x, w: x.view(2, 4, 3, 16) @ w.expand(4, 16, 5), XS, WS),
    "einsum": ([1, 24, 5, 16], lambda x, w: torch.einsum("bmk,kn->bmn", x, w), XS, WS),
    "baddbmm": ([1, 24, 5, 16], lambda x, w: torch.baddbmm(x[0, 0, :5], x, w.expand(8, 16, 5)), XS, WS),
    "materialised": ([8, 3, 5, 16], lambda x, w: x @ w.expand(8, 16, 5).contiguous(), XS, WS),
    "one of two batches": ([8, 3, 5, 16], lambda x, w: x.view(2, 4, 3, 16) @ w, XS, torch.zeros(4, 16, 5)),
}


@pytest.mark.parametrize("name", SHARED)
def test_products_with_an_expanded_factor_are_one(name: str) -> None:
    extents, function, x, w = SHARED[name]
    dtype, gemm, flops = product_of(function, x, w)
    assert (dtype, gemm, flops) == ("fp32", extents, 2 * prod(extents))


def test_a_gradient_through_an_expanded_factor_is_one_product() -> None:
    model = Once(lambda x, w: (x.transpose(0, 1) @ w.expand(8, 16, 5)).sum(), (3, 8, 16))
    graph = capture(model, WS)
    assert graph.gemm[graph.gemm.any(1)].tolist() == [[1, 24, 5, 16], [1, 24, 16, 5]]


def test_an_expanded_factor_is_read_once_and_takes_the_time_of_one_product() -> None:
    cluster = get_cluster("4xh100-sxm5")
    seconds, moved = [], []
    for function in (lambda x, w: x @ w.expand(64, 512, 512), lambda x, w: x.view(-1, 512) @ w):
        graph = capture(Once(function), (torch.zeros(64, 2, 512), torch.zeros(512, 512)), training=False)
        (op,) = np.flatnonzero(graph.gemm.any(1))
        seconds.append(op_seconds(graph, cluster)[op, 0])
        moved.append(graph.bytes_moved[op])
    assert seconds[0] == pytest.approx(seconds[1], rel=0.05)
    assert moved == [4 * (2 * 128 * 512 + 512 * 512)] * 2


def test_an_expanded_tensor_has_the_bytes_of_what_is_stored() -> None:
    model = Once(lambda x: (model.mask * x, x[0].expand(8, 4).mean(0)))
    model.register_buffer("mask", torch.zeros(1, 1).expand(8, 4))
    graph = capture(model, torch.zeros(1, 4).expand(8, 4), training=False)
    size = dict(zip(graph.op_names, graph.resident_bytes.tolist(), strict=True))
    assert size["mask"] == 4
    assert graph.tensor_bytes[graph.tensor_producer == graph.op_names.index("input.0")] == 16
    assert graph.bytes_moved[graph.op_names.index("mean")] == 32
