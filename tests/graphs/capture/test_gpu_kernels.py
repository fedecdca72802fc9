"""Captured steps have the kernels of the cluster's devices, where torch chooses by device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from agent import place
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import get_cluster, uniform
from envs.costs.op_classes import op_class
from graphs.capture.capture import capture
from graphs.capture.loss import CaptureError
from graphs.op_graph import OpGraph
from graphs.step_settings import AMPERE, Gpu
from tests.graphs.capture.capture_cases import Once, heard

Q = (2, 4, 64, 32)
V100, HOPPER = Gpu(7.0), Gpu(9.0)
CPU, FUSED = (
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention",
)
UNFUSED = "aten._safe_softmax"


def attention_of(
    query: tuple[int, ...] = Q,
    key: tuple[int, ...] = Q,
    value: tuple[int, ...] = Q,
    mask: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    gpu: Gpu | None = AMPERE,
    said: list[str] | None = None,
    **named: Any,
) -> str:
    """Captures the training of one attention; returns the op that it is."""

    def run(*given: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*given[:3], mask, **named)

    with torch.device("meta"):
        module = Once(run, query, key, value).to(dtype)
    if mask is not None:
        mask = mask.to("cpu")
    said = [] if said is None else said
    graph = capture(module, (), gpu=gpu, notify=said.append)
    backward = {kind for kind in graph.op_types if "attention" in kind and kind.endswith("backward")}
    (found,) = {CPU, FUSED, UNFUSED} & set(graph.op_types)
    assert backward == (set() if found == UNFUSED else {f"{found}_backward"})
    assert any("keeps its scores" in line for line in said) == (found == UNFUSED and gpu is not None)
    return found


@pytest.mark.parametrize("mask", [None, torch.ones(64, 64, dtype=torch.bool), torch.zeros(2, 1, 1, 64)])
def test_attention_with_dropout_is_fused_on_gpus_alone(mask: Tensor | None) -> None:
    assert attention_of(mask=mask, dropout_p=0.1, gpu=V100) == FUSED
    assert attention_of(mask=mask, dropout_p=0.1, gpu=None) == UNFUSED
    assert attention_of(mask=mask, gpu=V100) == attention_of(mask=mask, gpu=None) == CPU


@pytest.mark.parametrize(
    ("expected", "named"),
    [
        (FUSED, {"value": (2, 4, 64, 64)}),  # as in DeepSeek's latent attention
        (FUSED, {"mask": torch.zeros(4, 64, 64)}),
        (FUSED, {"query": (2, 4, 16, 32), "is_causal": True, "dropout_p": 0.5}),
        (CPU, {"query": (2, 4, 64, 320), "key": (2, 4, 64, 320), "value": (2, 4, 64, 320)}),
        (UNFUSED, {"query": Q[1:], "key": Q[1:], "value": Q[1:]}),
        (UNFUSED, {"dtype": torch.float64}),
        (UNFUSED, {"key": (2, 2, 64, 32), "value": (2, 2, 64, 32), "enable_gqa": True}),
    ],
)
def test_shapes_and_types_decide(expected: str, named: dict[str, Any]) -> None:
    assert attention_of(**named) == expected


def test_the_generation_decides() -> None:
    """Flash and bfloat16 need Ampere; widths that 4 does not divide are fused in fp32 only before it."""
    half: dict[str, Any] = {"dtype": torch.bfloat16}
    grouped = {"key": (2, 2, 64, 32), "value": (2, 2, 64, 32), "enable_gqa": True}
    odd: dict[str, Any] = dict.fromkeys(("query", "key", "value"), (2, 4, 64, 30))
    assert [attention_of(gpu=gpu, **half) for gpu in (V100, HOPPER)] == [UNFUSED, CPU]
    assert [attention_of(gpu=gpu, **half, **grouped) for gpu in (V100, HOPPER)] == [UNFUSED, CPU]
    assert attention_of(**half, **grouped, dropout_p=0.1) == FUSED
    assert [attention_of(gpu=gpu, **odd) for gpu in (V100, AMPERE)] == [CPU, UNFUSED]
    assert attention_of(gpu=Gpu(3.7)) == UNFUSED
    assert [attention_of(gpu=Gpu(8.0, name), **grouped) for name in ("amp-bf16", "tf32")] == [CPU, UNFUSED]


def test_unfused_attention_says_which_and_by_what_rule() -> None:
    said: list[str] = []
    attention_of(dtype=torch.float64, said=said)
    (line,) = (line for line in said if "scores" in line)
    assert "in torch.float64 on compute capability 8 is not fused" in line
    assert "sdp_utils.cpp" in line


def test_kernels_that_the_model_allows_are_those_of_gpus() -> None:
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert attention_of() == FUSED
        with pytest.raises(CaptureError, match=r"float64 .* has no kernel that `sdpa_kernel` allows"):
            attention_of(dtype=torch.float64)


def test_a_mask_may_learn() -> None:
    with torch.device("meta"):
        module = Once(F.scaled_dot_product_attention, Q, Q, Q, (64, 64))
    graph = capture(module, (), notify=lambda _: None)
    assert FUSED in graph.op_types
    assert sum(kind == "optim.adam" for kind in graph.op_types) == 4


def rms_norms(graph: OpGraph) -> list[str]:
    return [kind for kind in graph.op_types if "rms_norm" in kind or "rsqrt" in kind]


def test_rms_norms_are_fused_on_gpus_alone() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8)), torch.zeros(4, 8)
    graph = capture(module, x, notify=lambda _: None)
    assert rms_norms(graph) == ["aten._fused_rms_norm", "aten._fused_rms_norm_backward"]
    assert rms_norms(capture(module, x, gpu=None, notify=lambda _: None))[0] == "aten.rsqrt"
    assert rms_norms(capture(module, x, training=False)) == ["aten._fused_rms_norm"]
    torch.testing.assert_close(F.rms_norm(x, (8,)), x)  # torch is as it was


def doubled(score: Tensor, *_: Tensor) -> Tensor:
    return 2 * score


class Flex(nn.Module):
    def __init__(self, attend: Callable[..., Any], score_mod: Any, masked: bool) -> None:
        super().__init__()
        self.layer, self.attend, self.score_mod, self.masked = nn.Linear(8, 24), attend, score_mod, masked

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.layer(x).view(2, 128, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = None
        if self.masked:
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device=x.device)
        return self.attend(query, key, value, score_mod=self.score_mod, block_mask=mask).square().mean()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(("compiles", "score_mod", "masked"), [(False, None, False), (True, doubled, True)])
def test_flex_attention_trains(compiles: bool, score_mod: Any, masked: bool) -> None:
    attend: Any = torch.compile(flex_attention) if compiles else flex_attention
    graph = capture(Flex(attend, score_mod, masked), torch.zeros(2, 128, 8))
    flops = dict(zip(graph.op_types, graph.flops.tolist(), strict=True))
    product = 2 * 2 * 2 * 128 * 128 * 4
    assert flops["flex_attention"] == 2 * product
    assert flops["flex_attention_backward"] == 5 * product
    assert max(graph.tensor_bytes) < 128 * 128 * 4 * 2 * 2  # no scores
    assert op_class("flex_attention_backward") == "attention"


def test_flex_attention_does_not_train_on_processors() -> None:
    with pytest.raises(CaptureError, match="FlexAttention does not support backward on CPU"):
        capture(Flex(flex_attention, None, False), torch.zeros(2, 128, 8), gpu=None)


PROCESSORS = uniform("2xcpu", get_cluster("gpu+cpu").devices[1], 2, 1e10)


def test_the_cluster_decides() -> None:
    assert gpus_of([PROCESSORS]) is None
    assert gpus_of([get_cluster("4xv100"), get_cluster("4xh100")], "bf16") == Gpu(7.0, "bf16")
    assert gpus_of([get_cluster("gpu+cpu")]) == gpus_of([get_cluster("4xv100-sxm2")]) == V100
    assert gpus_of([get_cluster("8xa100"), PROCESSORS]) == AMPERE


def test_dropout_of_attention_takes_no_memory_on_gpus() -> None:
    peaks = {}
    for p in (0.0, 0.1):
        with torch.device("meta"):
            module = nn.TransformerEncoderLayer(64, 4, 64, 0.0, batch_first=True)
            x = torch.randn(2, 1024, 64)
        module.self_attn.dropout = p
        for cluster in (get_cluster("4xv100"), PROCESSORS):
            plan = place(module, x, cluster=cluster, placer="single")
            peaks[cluster.name, p] = float(plan.step_time.peak_bytes.max())
    scores = 4 * 2 * 4 * 1024**2
    assert peaks["4xv100", 0.1] == pytest.approx(peaks["4xv100", 0.0], abs=2**20)
    assert peaks["2xcpu", 0.1] > peaks["2xcpu", 0.0] + scores


def encoder(**settings: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, **{"batch_first": True} | settings)


ATTENTION, LAYER = "nn.MultiheadAttention", "nn.TransformerEncoderLayer"


@pytest.mark.parametrize(
    ("name", "module", "operands"),
    [
        (LAYER, nn.TransformerEncoder(encoder(), 2), "x"),
        (LAYER, encoder(norm_first=True), "xm"),
        (ATTENTION, encoder(activation=F.silu), "x"),
        (ATTENTION, nn.MultiheadAttention(8, 2, batch_first=True), "xxx"),
        (ATTENTION, nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), "xx"),
        ("", nn.MultiheadAttention(8, 2, batch_first=True), "xyy"),
        ("", encoder(activation=F.silu), "xm"),
        ("", encoder(batch_first=False), "x"),
        ("", encoder(bias=False), "x"),
    ],
)
def test_fast_paths_that_eager_inference_takes_are_said(
    name: str, module: nn.Module, operands: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"x": torch.zeros(2, 3, 8), "y": torch.zeros(2, 3, 8), "m": torch.ones(3, 3).triu(1).bool()}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = module

        def forward(self, **given: Tensor) -> Any:
            return self.part(*(given[key] for key in operands))

    _, lines = heard(Model(), {key: tensors[key] for key in operands}, training=False)
    assert [line.split(": ")[1] for line in lines if "fast path" in line] == [name] * bool(name)
    calls: list[str] = []
    for op in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
        real = getattr(torch, op)
        monkeypatch.setattr(torch, op, lambda *a, op=op, real=real: calls.append(op) or real(*a))
    with torch.no_grad():
        Model().eval()(**{key: tensors[key] for key in operands})
    eager = {"_transformer_encoder_layer_fwd": LAYER, "_native_multi_head_attention": ATTENTION}
    assert {eager[call] for call in calls} == {name} - {""}
