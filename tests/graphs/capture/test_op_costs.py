"""Costs of single ops, read off captured graphs; guesses are named with the remedy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from graphs.capture.capture import capture
from graphs.capture.loss import CaptureError
from graphs.op_graph import OpGraph
from tests.graphs.capture.capture_cases import Once

aten = torch.ops.aten


def cost(graph: OpGraph, kind: str) -> tuple[float, float]:
    index = graph.op_types.index(kind)
    return graph.flops[index], graph.bytes_moved[index]


def test_grouped_products_count_each_row_once_and_twice_backward() -> None:
    moe = pytest.importorskip("transformers.integrations.moe", reason="transformers is not installed")
    offsets = torch.tensor([2, 6, 10], dtype=torch.int32)
    graph = capture(Once(lambda x, w: moe._grouped_mm(x, w, offsets), (10, 4), (3, 4, 8)), ())
    kind = next(kind for kind in graph.op_types if "grouped_mm" in kind)
    assert cost(graph, kind)[0] == 2 * 10 * 4 * 8
    # One op of transformers, or since torch 2.15 two products of torch.
    backward = [op for op, name in enumerate(graph.op_types) if name in (f"{kind}_backward", kind)][1:]
    assert graph.flops[backward].sum() == 2 * 2 * 10 * 4 * 8


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
    assert product.dtypes[product.op_types.index("aten.mm")] == "fp32"
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


BAGS, LOOKED_UP, ROWS, WIDTH = 4, 12, 1000, 8
BAG_NOTES = 8 * (LOOKED_UP + 2 * BAGS)
"""Bytes that a bag of embeddings notes: the bag of each look-up, and the size and maximum of each bag."""


@pytest.mark.parametrize(("training", "sparse"), [(False, False), (True, False), (True, True)])
def test_bags_of_embeddings_read_their_rows_not_their_table(training: bool, sparse: bool) -> None:
    tokens = torch.zeros(BAGS, LOOKED_UP // BAGS, dtype=torch.long)
    graph = capture(nn.EmbeddingBag(ROWS, WIDTH, sparse=sparse), tokens, training=training)
    kind = next(kind for kind in graph.op_types if kind.startswith("aten._embedding_bag"))
    read = 4 * LOOKED_UP * WIDTH + 8 * LOOKED_UP + 8 * BAGS  # rows, their indices, where bags begin
    assert cost(graph, kind) == (LOOKED_UP * WIDTH, read + 4 * BAGS * WIDTH + BAG_NOTES)
    if training:
        flops, moved = cost(graph, "aten._embedding_bag_backward")
        assert flops == LOOKED_UP * WIDTH
        noted = 8 * LOOKED_UP + 8 * BAGS + BAG_NOTES  # what the forward pass read and noted
        gradient = (4 * WIDTH + 8) * LOOKED_UP if sparse else 4 * ROWS * WIDTH  # rows and their indices alone
        assert moved == 4 * BAGS * WIDTH + noted + gradient


FUSED = {
    "flash_attention_for_cpu": F.scaled_dot_product_attention,
    "flash_attention": lambda *qkv: aten._scaled_dot_product_flash_attention(*qkv)[0],
    "efficient_attention": lambda *qkv: aten._scaled_dot_product_efficient_attention(*qkv, None, True)[0],
    "cudnn_attention": lambda *qkv: aten._scaled_dot_product_cudnn_attention(*qkv, None, True)[0],
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_attention_moves_its_inputs_and_outputs_and_no_scores(name: str) -> None:
    heads, queries, keys, width = 6, 64, 96, 16
    shapes = [(2, 3, length, width) for length in (queries, keys, keys)]
    graph = capture(Once(FUSED[name], *shapes), ())
    ends, sums = 4 * heads * width * (2 * queries + 2 * keys), 4 * heads * queries  # of rows of scores
    flops, moved = cost(graph, f"aten._scaled_dot_product_{name}")
    product = 2 * heads * queries * keys * width
    assert flops == 2 * product
    assert moved == pytest.approx(ends + sums, abs=64)  # and the state of the random numbers
    flops, moved = cost(graph, f"aten._scaled_dot_product_{name}_backward")
    assert flops == 5 * product
    gradients = 4 * heads * width * (2 * queries + 2 * keys)
    assert moved == pytest.approx(ends + sums + gradients, abs=64)


def test_attention_of_separate_ops_moves_its_scores() -> None:
    shapes = [(2, 3, 64, 16)] * 3
    module = Once(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1), *shapes)
    graph = capture(module, (), gpu=None)
    scores = 4 * 6 * 64 * 64
    assert cost(graph, "aten._safe_softmax")[1] == 2 * scores
    assert cost(graph, "aten.bmm")[1] == 2 * 4 * 6 * 64 * 16 + scores


@torch.library.custom_op("placewalk_test::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, scale: Tensor) -> Tensor:
    return q.clone()


@attend.register_fake
def _(q: Tensor, k: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(q)


@torch.library.custom_op("placewalk_test::fill", mutates_args=("out",))
def fill(x: Tensor, out: Tensor, times: int = 2) -> None:
    out.copy_(times * x)


class Custom(nn.Module):
    """An op that makes a tensor, and one that changes one."""

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        torch.ops.placewalk_test.fill(attend(x, x, torch.ones(4096)), out, 3)
        return out


@pytest.fixture
def formulas() -> Iterator[None]:
    yield
    for op in (torch.ops.placewalk_test.attend, torch.ops.placewalk_test.fill):
        flop_registry.pop(op, None)


def captured(dtype: torch.dtype = torch.float32) -> tuple[OpGraph, list[str]]:
    lines: list[str] = []
    graph = capture(Custom(), torch.zeros(6, 8).to(dtype), training=False, notify=lines.append, name="m")
    return graph, lines


def flops(graph: OpGraph, kind: str) -> float:
    return float(graph.flops[graph.op_types.index(f"placewalk_test.{kind}")])


def test_guesses_are_named_with_the_remedy() -> None:
    _, lines = captured()
    assert lines == [
        "model 'm': the time of placewalk_test.attend, placewalk_test.fill is a guess (an operation per "
        "number, each tensor moved once); give its flops to torch.utils.flop_counter.register_flop_formula"
    ]


def test_formulas_of_the_user_are_used_also_for_ops_that_change_tensors(formulas: None) -> None:
    register_flop_formula(torch.ops.placewalk_test.attend)(lambda q, k, *_, **__: 10 * q[0] * k[1])
    register_flop_formula(torch.ops.placewalk_test.fill)(lambda x, out, times, **_: times * out[0])
    graph, lines = captured()
    assert (flops(graph, "attend"), flops(graph, "fill"), lines) == (10 * 6 * 8, 3 * 6, [])


def test_a_formula_that_fails_is_one_line(formulas: None) -> None:
    register_flop_formula(torch.ops.placewalk_test.attend)(lambda q, **_: q[9])
    with pytest.raises(CaptureError, match=r"^model 'm' cannot be captured: the formula for the flops of"):
        captured()


def test_scales_do_not_decide_the_dtype_of_a_custom_op() -> None:
    graph, _ = captured(torch.bfloat16)
    assert graph.dtypes[graph.op_types.index("placewalk_test.fill")] == "bf16"


def test_factorizations_are_guesses() -> None:
    lines: list[str] = []
    capture(Once(torch.linalg.solve), (torch.eye(4), torch.eye(4)), training=False, notify=lines.append)
    (line,) = lines
    assert "the time of aten._linalg_solve_ex is a guess" in line
