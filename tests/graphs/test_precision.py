"""Graphs of steps in fp32 are costed in other precisions as they are captured in them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.capture.capture import capture
from graphs.op_graph import OpGraph, build_graph
from graphs.precision import PrecisionError, with_precision
from graphs.step_settings import PRECISIONS


class Block(nn.Module):
    """A layer of a transformer, its norms before attention and before the perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.inner(self.norms[0](x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(batch, length, width)
        x = x + self.outer(attended)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    """Two blocks between an embedding and a head with a cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(100, 64), nn.LayerNorm(64), nn.Linear(64, 100)
        self.blocks = nn.Sequential(Block(64), Block(64))

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.embed(tokens))))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def convnet() -> nn.Module:
    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layer(3, 16), nn.MaxPool2d(2), *layer(16, 32), *pooled, nn.Linear(32, 10))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))


class Amp(nn.Module):
    """A module in an autocast region for CUDA."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", self.dtype):
            return self.module(x)


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "transformer": (Transformer, torch.zeros(4, 64, dtype=torch.long)),
    "convnet": (convnet, torch.zeros(4, 3, 32, 32)),
    "perceptron": (perceptron, torch.zeros(512, 64)),
}


def product_flops(graph: OpGraph) -> dict[str, float]:
    """Flops of matrix products, convolutions and attention, by dtype."""
    found: dict[str, float] = {}
    for op in np.flatnonzero(graph.gemm.any(axis=1)).tolist():
        found[graph.dtypes[op]] = found.get(graph.dtypes[op], 0.0) + float(graph.flops[op])
    return found


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16"])
@pytest.mark.parametrize("case", CASES)
def test_autocast_costs_what_an_autocast_region_is_captured_with(case: str, precision: str) -> None:
    build, inputs = CASES[case]
    module = build()
    dtype = torch.bfloat16 if precision == "amp-bf16" else torch.float16
    captured = capture(Amp(module, dtype), inputs)
    costed = with_precision(capture(module, inputs), precision)
    assert product_flops(costed) == product_flops(captured)
    assert set(product_flops(costed)) == {precision.removeprefix("amp-")}
    casts = [op for op, kind in enumerate(captured.op_types) if kind == "aten._to_copy"]
    of_weights = [op for op in casts if captured.op_types[captured.predecessors.row(op)[0]] == "parameter"]
    cast_bytes = sum(captured.tensor_bytes[captured.outputs.row(op)].sum() for op in of_weights)
    assert costed.resident_bytes.sum() == captured.resident_bytes.sum() + cast_bytes
    # Captured on CPU tensors, a softmax is preceded by a cast, which CUDA does in the same kernel.
    assert costed.bytes_moved.sum() == pytest.approx(captured.bytes_moved.sum(), rel=0.04)


@pytest.mark.parametrize("case", CASES)
def test_bf16_costs_what_a_module_in_bf16_is_captured_with(case: str) -> None:
    build, inputs = CASES[case]
    module = build()
    half = inputs.bfloat16() if inputs.is_floating_point() else inputs
    captured = capture(copy.deepcopy(module).bfloat16(), half)
    costed = with_precision(capture(module, inputs), "bf16")
    assert product_flops(costed) == product_flops(captured)
    # The sums that attention and norms keep are in fp32.
    for label in ("bytes_moved", "tensor_bytes", "resident_bytes"):
        ours, theirs = getattr(costed, label).sum(), getattr(captured, label).sum()
        assert ours == pytest.approx(theirs, rel=0.005)


def test_fp32_and_tf32_are_of_products_and_convolutions_alone() -> None:
    graph = capture(convnet(), CASES["convnet"][1])
    assert set(product_flops(graph)) == {"fp32", "tf32"}
    for precision in ("fp32", "tf32"):
        costed = with_precision(graph, precision)
        assert set(product_flops(costed)) == {precision}
        others = ~graph.gemm.any(axis=1)
        assert {costed.dtypes[op] for op in np.flatnonzero(others)} <= {"fp32", "int"}
        np.testing.assert_array_equal(costed.bytes_moved, graph.bytes_moved)
        np.testing.assert_array_equal(costed.tensor_bytes, graph.tensor_bytes)


def test_casts_are_traffic_of_the_op_that_needs_them_and_weights_are_cast_once() -> None:
    ops = [
        {"name": "w", "type": "parameter", "resident_bytes": 1600, "colocate": 0},
        {"name": "x", "type": "input"},
        {"name": "first", "type": "aten.mm", "bytes_moved": 1200, "colocate": 0},
        {"name": "second", "type": "aten.mm", "bytes_moved": 1200},
        {"name": "exp", "type": "aten.exp", "bytes_moved": 800},
        {"name": "gradient", "type": "aten.mm", "phase": "backward", "bytes_moved": 1200},
        {"name": "adam/w", "type": "optim.adam", "phase": "optimizer", "bytes_moved": 2800, "colocate": 0},
    ]
    edges = [(0, [2, 3]), (1, [2]), (2, [3]), (3, [4, 5]), (4, [5]), (5, [6])]
    graph = build_graph("g", "", ops, [(producer, 400, readers) for producer, readers in edges])
    costed = with_precision(graph, "amp-bf16")
    cast = 400 + 200
    assert costed.bytes_moved.tolist() == [
        *(0, 0),
        600 + 2 * cast,  # of weights and input
        600,  # the weights were cast before
        800 + cast,  # back to fp32
        600 + 2 * cast,  # the result of exp, and the gradient to fp32
        2800,
    ]
    assert costed.tensor_bytes.tolist() == [400, 400, 200, 200, 400, 400]
    assert costed.dtypes == ("fp32", "fp32", "bf16", "bf16", "fp32", "bf16", "fp32")
    assert costed.resident_bytes.tolist() == [1600 + 200, *graph.resident_bytes[1:].tolist()]


def test_a_graph_that_does_not_say_its_dtypes_is_taken_to_be_in_fp32() -> None:
    for precision in PRECISIONS:
        graph = capture(Transformer(), CASES["transformer"][1], training=precision != "int4")
        silent = replace(graph, dtypes=())
        said, guessed = with_precision(graph, precision), with_precision(silent, precision)
        assert guessed.bytes_moved.sum() == pytest.approx(said.bytes_moved.sum(), rel=0.01)
        assert product_flops(guessed) == product_flops(said)


def test_an_unknown_precision_or_a_graph_in_another_one_is_refused() -> None:
    graph = capture(perceptron().half(), torch.zeros(2, 64).half(), name="half")
    with pytest.raises(PrecisionError, match=r"^unknown precision 'fp6'; use one of fp32, tf32, amp-bf16"):
        with_precision(graph, "fp6")
    with pytest.raises(
        PrecisionError, match=r"^graph 'half': op 0 \('0.bias'\) computes in fp16; only a graph"
    ):
        with_precision(graph, "bf16")


def test_weights_of_four_bits_are_those_that_only_products_read() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.inner, self.norm = (
                nn.Embedding(100, 64),
                nn.Linear(64, 256, False),
                nn.LayerNorm(256),
            )
            self.outer = nn.Linear(256, 64, False)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.outer(self.norm(self.inner(self.embed(tokens)))) @ self.embed.weight.T

    graph = capture(Tied(), torch.zeros(1, 3, dtype=torch.long), training=False)
    half, quarter = (with_precision(graph, precision) for precision in ("bf16", "int4"))
    weights = [graph.op_names.index(f"{name}.weight") for name in ("inner", "outer")]
    for columns in (half.resident_bytes, quarter.resident_bytes):
        others = np.delete(columns, weights)
        assert others.sum() == 2 * (100 * 64 + 2 * 256)
    assert (quarter.resident_bytes[weights] == 64 * 256 * 4.5 / 8).all()
    saved = half.bytes_moved - quarter.bytes_moved
    products = [int(graph.successors.row(op)[0]) for op in weights]
    assert (saved[products] == 64 * 256 * (16 - 4.5) / 8).all()
    assert not np.delete(saved, products).any()


class Lora(nn.Module):
    """A frozen layer with a trained adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(64, 64), nn.Linear(64, 4, False), nn.Linear(4, 64, False)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Tuned(nn.Module):
    """Adapters between a frozen embedding and a frozen head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(100, 64), nn.Sequential(Lora(), Lora())
        self.head = nn.Linear(64, 100, False).requires_grad_(False)
        self.embed.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


@pytest.mark.parametrize(("precision", "bits"), [("int4", 4.5), ("int8", 8.5), ("fp8", 8.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_weights_have_few_bits_in_training(precision: str, bits: float, dtype: torch.dtype) -> None:
    graph = capture(Tuned().to(dtype), torch.zeros(2, 3, dtype=torch.long))
    half = with_precision(graph, "bf16") if dtype is torch.float32 else graph
    costed = with_precision(graph, precision)
    shrunk = [op for op in range(graph.n_ops) if costed.resident_bytes[op] < half.resident_bytes[op]]
    assert {graph.op_names[op] for op in shrunk} == {f"layers.{layer}.base.weight" for layer in (0, 1)}
    assert (costed.resident_bytes[shrunk] == 64 * 64 * bits / 8).all()
    others = np.delete(np.arange(graph.n_ops), shrunk)
    np.testing.assert_array_equal(costed.resident_bytes[others], half.resident_bytes[others])
    assert costed.dtypes == half.dtypes
    reads = np.flatnonzero(costed.bytes_moved < half.bytes_moved)
    assert {graph.phases[op] for op in reads} == {"forward", "backward"}
