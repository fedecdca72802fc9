"""Costs of ops against hand counts and torch's own counters; guesses are named with the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from envs.cluster.presets import get_cluster
from envs.objective import simulate
from envs.placements.placement import Placement
from graphs.capture.capture import capture
from graphs.capture.loss import CaptureError
from graphs.capture.step import Step
from graphs.op_graph import OpGraph
from tests.graphs.capture.capture_cases import Once, heard
from tests.graphs.test_precision import Transformer, convnet, perceptron

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
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


def complex_tensor(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.complex64)


REAL, SIGNALS, SQUARE = torch.zeros(10, 4), torch.zeros(3, 16), complex_tensor(4, 4)
FULL = 5 * (3 * 16) * 4
"""Operations of Fourier transforms of three signals of 16 elements."""


@pytest.mark.parametrize(
    ("function", "inputs", "kind", "flops", "moved"),
    [
        (lambda x: x[:2].exp(), (REAL,), "exp", 8, 2 * 8 * 4),  # what a slice shows
        (lambda x: x.expand(10, 4).exp(), (REAL[0].clone(),), "exp", 40, (4 + 40) * 4),  # what is held
        (lambda x: x * x.T, (torch.zeros(4, 4),), "mul", 16, 2 * 16 * 4),
        (lambda x: x.sum(0), (REAL,), "sum", 40, 40 * 4 + 4 * 4),
        (lambda x: torch.cat([x, x]), (REAL,), "cat", 0, (40 + 80) * 4),
        (lambda a, b: a @ b, (complex_tensor(3, 4), complex_tensor(4, 5)), "mm", 8 * 60, 8 * (12 + 20 + 15)),
        (lambda a: a * a.mH, (SQUARE,), "mul", 6 * 16, 3 * 16 * 8),
        (lambda a: a * 2, (SQUARE,), "mul", 2 * 16, 2 * 16 * 8),
        (lambda a: a + 1, (SQUARE,), "add", 2 * 16, 2 * 16 * 8),
        (torch.fft.fft, (complex_tensor(3, 16),), "_fft_c2c", FULL, 2 * 3 * 16 * 8),
        (torch.fft.rfft, (SIGNALS,), "_fft_r2c", FULL / 2, 3 * 16 * 4 + 3 * 9 * 8),
        (torch.fft.irfft, (complex_tensor(3, 9),), "_fft_c2r", FULL / 2, 3 * 16 * 4 + 3 * 9 * 8),
        (torch.fft.fft2, (complex_tensor(4, 8),), "_fft_c2c", 5 * 32 * 5, 2 * 32 * 8),
    ],
)
def test_an_op_costs_what_is_counted_by_hand(
    function: object, inputs: tuple[Tensor, ...], kind: str, flops: float, moved: float
) -> None:
    graph = capture(Once(function), inputs, training=False)
    assert cost(graph, f"aten.{kind}") == (flops, moved)
    assert graph.dtypes[graph.op_types.index(f"aten.{kind}")] == "fp32"


def test_an_embedding_reads_its_rows_not_its_table() -> None:
    graph = capture(nn.Embedding(1000, 8), torch.zeros(5, dtype=torch.long))
    assert cost(graph, "aten.embedding") == (0, 5 * 8 + 2 * 5 * 8 * 4)
    assert cost(graph, "aten.embedding_dense_backward") == (5 * 8, 5 * 8 + 5 * 8 * 4 + 1000 * 8 * 4)


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


def custom(x: Tensor) -> Tensor:
    """Calls an op that makes a tensor, and one that changes one."""
    out = torch.zeros_like(x)
    torch.ops.placewalk_test.fill(attend(x, x, torch.ones(4096)), out, 3)
    return out


@pytest.fixture
def formulas() -> Iterator[None]:
    yield
    for op in (torch.ops.placewalk_test.attend, torch.ops.placewalk_test.fill):
        flop_registry.pop(op, None)


def captured(dtype: torch.dtype = torch.float32) -> tuple[OpGraph, list[str]]:
    return heard(Once(custom), torch.zeros(6, 8).to(dtype), training=False, name="m")


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
    _, (line,) = heard(Once(torch.linalg.solve), (torch.eye(4), torch.eye(4)), training=False)
    assert "the time of aten._linalg_solve_ex is a guess" in line


class Last(nn.Module):
    """A recurrent layer and a head on its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][-1])


def heads(x: Tensor) -> Tensor:
    """Attention of separate ops on processors, since it has dropout."""
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


def unet() -> nn.Module:
    down, up = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1)
    return nn.Sequential(down, nn.GroupNorm(4, 16), nn.SiLU(), up)


IMAGES, TOKENS = torch.zeros(4, 3, 32, 32), torch.zeros(4, 16, dtype=torch.long)
MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "perceptron": (perceptron, torch.zeros(64, 64)),
    "convnet": (convnet, IMAGES),
    "unet": (unet, IMAGES),
    "one dimension": (lambda: nn.Conv1d(8, 16, 5, dilation=2), torch.zeros(2, 8, 100)),
    "volumes": (lambda: nn.Conv3d(2, 4, 3), torch.zeros(2, 2, 8, 8, 8)),
    "lstm": (lambda: Last(nn.LSTM(16, 32)), torch.zeros(5, 4, 16)),
    "gru": (lambda: Last(nn.GRU(16, 32)), torch.zeros(5, 4, 16)),
    "attention": (lambda: nn.Sequential(nn.Linear(16, 16), Once(heads)), torch.zeros(2, 4, 32, 16)),
    "recommender": (lambda: nn.Sequential(nn.EmbeddingBag(1000, 64), perceptron()), TOKENS),
    "bilinear": (lambda: nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)), torch.zeros(3, 4, 16)),
}


def torch_flops(module: nn.Module, inputs: Tensor) -> float:
    step = Step(module, inputs, training=True)
    with (
        step.fake_mode,
        torch.backends.mkldnn.flags(enabled=False),
        FlopCounterMode(display=False) as counter,
    ):
        step(*step.tensors).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", MODELS)
def test_products_have_the_flops_that_torch_counts(name: str) -> None:
    build, inputs = MODELS[name]
    module = build()
    graph = capture(module, inputs, gpu=None)
    assert graph.flops[graph.gemm.any(axis=1)].sum() == torch_flops(module, inputs) > 0


def torch_peak_bytes(module: nn.Module, inputs: Tensor, optimizer: str) -> int:
    """Peak of the second step, when the state of the optimizer and the gradients are there.

    A graph counts gradients all step, as they are where steps accumulate them; `zero_grad` drops them by
    default, and then those that are not there yet at the peak are saved.
    """
    step = Step(module, inputs, training=True)
    with step.fake_mode, torch.backends.mkldnn.flags(enabled=False):
        maker = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
        # One parameter after the other, as a graph has one update for each.
        update = maker(step.model.parameters(), foreach=False)
        tracker = MemTracker()
        tracker.track_external(step.model, update, *step.tensors)
        with tracker:
            for number in range(2):
                step(*step.tensors).backward()
                update.step()
                update.zero_grad(set_to_none=False)
                if number == 0:
                    tracker.reset_mod_stats()
        return max(of_device["Total"] for of_device in tracker.get_tracker_snapshot("peak").values())


def simulated_peak_bytes(module: nn.Module, inputs: Tensor, optimizer: str) -> float:
    graph, cluster = capture(module, inputs, optimizer=optimizer), get_cluster("4xv100")
    devices = tuple(replace(device, memory_bytes=1e15) for device in cluster.devices)
    everything_on_one = Placement(np.zeros(graph.n_ops, dtype=np.int64))
    return float(simulate(graph, replace(cluster, devices=devices), everything_on_one).peak_bytes[0])


MEMORY: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "transformer": (Transformer, torch.zeros(8, 128, dtype=torch.long)),
    "convnet": (convnet, torch.zeros(16, 3, 32, 32)),
    "perceptron": (perceptron, torch.zeros(4096, 64)),
}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", MEMORY)
def test_the_peak_on_one_device_is_that_of_torch(name: str, optimizer: str) -> None:
    build, inputs = MEMORY[name]
    module = build()
    peak = torch_peak_bytes(module, inputs, optimizer)
    assert simulated_peak_bytes(module, inputs, optimizer) == pytest.approx(peak, rel=0.05)
