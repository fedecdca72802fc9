"""Autocast regions are captured as they run: casts, products in the low precision, the rest in fp32."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.capture import autocast
from graphs.capture.capture import capture
from graphs.capture.loss import CaptureError
from graphs.op_graph import OpGraph
from tests.graphs.capture.capture_cases import Calls, heard

pytestmark = pytest.mark.cuda  # a region for CUDA is another one where CUDA is


class Autocast(nn.Module):
    """A layer that is used twice, a norm, a residual addition, a softmax and a loss; in a region."""

    def __init__(self, device: str, dtype: torch.dtype | None = torch.bfloat16) -> None:
        super().__init__()
        self.first, self.norm, self.layer = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.device, self.dtype = device, dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device, self.dtype):
            hidden = self.norm(self.first(x))
            hidden = F.gelu(self.layer(self.layer(hidden))) + x
            with torch.autocast(self.device, enabled=False):
                hidden = hidden @ self.first.weight
            return F.cross_entropy(self.layer(hidden).softmax(-1), torch.zeros(4).long())


def dtypes(graph: OpGraph) -> dict[str, str]:
    return dict(zip(graph.op_names, graph.dtypes, strict=True))


X = torch.zeros(4, 8)
CUDA = {
    "first/addmm": "bf16",
    "norm/native_layer_norm": "fp32",
    "layer/addmm": "bf16",
    "gelu": "bf16",
    "add": "fp32",
    "mm": "fp32",
    "layer@2/addmm": "bf16",
    "_softmax": "fp32",
    "_log_softmax": "fp32",
    "gradients/layer/mm": "bf16",
    "gradients/norm/native_layer_norm_backward": "fp32",
    "gradients/gelu_backward": "bf16",
    "adam/layer.weight": "fp32",
}


def test_a_region_for_cuda_is_captured_by_the_list_of_cuda_without_cuda() -> None:
    found = dtypes(capture(Autocast("cuda"), X))
    assert {name: found[name] for name in CUDA} == CUDA


def test_a_region_for_the_cpu_keeps_the_list_of_the_cpu() -> None:
    found = dtypes(capture(Autocast("cpu"), X))
    assert {name: found[name] for name in CUDA} == CUDA | {
        "norm/native_layer_norm": "fp32",
        "_softmax": "bf16",
    }


def test_a_region_for_cuda_is_in_half_precision_unless_it_says_otherwise() -> None:
    assert dtypes(capture(Autocast("cuda", None), X))["first/addmm"] == "fp16"


def test_a_weight_is_cast_once_and_its_gradient_once() -> None:
    graph = capture(Autocast("cuda"), X)
    weight = graph.op_names.index("layer.weight")
    (cast,) = graph.successors.row(weight)
    assert graph.op_types[cast] == "aten._to_copy"
    assert graph.colocate[cast] == graph.colocate[weight]
    assert (graph.flops[cast], graph.bytes_moved[cast]) == (0, 4 * 64 + 2 * 64)
    (gradient,) = graph.predecessors.row(graph.op_names.index("adam/layer.weight"))
    assert graph.op_types[gradient] == "aten._to_copy"
    assert graph.resident_bytes[weight] == 4 * 4 * 64


def test_a_capture_leaves_autocast_as_it_was() -> None:
    before = torch.autocast.__init__, torch.autocast.__enter__
    capture(Autocast("cuda"), X)
    assert (torch.autocast.__init__, torch.autocast.__enter__) == before
    assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        assert F.softmax(X.bfloat16(), -1).dtype == torch.bfloat16
    plain = capture(nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), X)
    assert set(plain.dtypes) == {"fp32"}


class Made(nn.Module):
    """A region that was made with the module."""

    def __init__(self, enabled: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.region = torch.autocast("cuda", torch.bfloat16, enabled)

    def forward(self, x: Tensor) -> Tensor:
        with self.region:
            return self.layer(x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here, so the region is enabled")
def test_a_region_that_was_made_without_cuda_is_told_of() -> None:
    graph, (notice,) = heard(Made(), X, loss=torch.mean)
    assert set(graph.dtypes) == {"fp32"}
    assert re.search(r"model 'Made': an autocast region for CUDA was made before .* precision$", notice)


def test_the_lists_are_those_of_torch() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.is_file():
        pytest.skip("torch came without its headers")
    text = header.read_text()
    for macro, names in (
        ("LOWER_PRECISION_FP", autocast.LOWER),
        ("FP32", autocast.FP32),
        ("FP32_SET_OPT_DTYPE", autocast.FP32_RESULT),
        ("PROMOTE", autocast.PROMOTE),
    ):
        block = re.search(rf"#define AT_FORALL_{macro}\(_\)((?:.*\\\n)*.*)", text)
        assert block is not None
        listed = {
            f"{op}.{overload}".rstrip(".")
            for op, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", block[1])
            if "imname" not in overload  # until torch 2.12, of tensors with named dimensions
        }
        assert set(filter(autocast.is_on_cudas_list, names)) == listed
        assert set(names) - listed <= {"rms_norm"}  # which torch 2.11 lacks


def in_region(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """Makes a function of a layer's outputs, in a region for CUDA."""

    def run(layer: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return function(layer(x)).float().mean()

    return Calls(run)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("avg_pool3d", lambda y: F.avg_pool3d(y.view(1, 1, 2, 2, 4), 2)),
        ("reflection_pad1d", lambda y: F.pad(y.view(1, 4, 4), (1, 1), mode="reflect")),
        ("grid_sampler_2d", lambda y: F.grid_sample(y.view(1, 1, 4, 4), y.view(1, 4, 2, 2))),
    ],
)
def test_ops_that_only_the_cpus_list_has_are_not_cast(op: str, function: Callable[[Tensor], Tensor]) -> None:
    graph = capture(in_region(function), X[:, :4])
    assert [dtypes(graph)[name] for name in graph.op_names if name.endswith(op)] == ["bf16"]
    with torch.autocast("cpu", torch.bfloat16):
        assert F.avg_pool3d(X.bfloat16().view(1, 1, 2, 2, 8), 2).dtype is torch.float32  # torch is as it was


def test_what_autocast_refuses_on_gpus_is_refused() -> None:
    module = in_region(lambda y: F.binary_cross_entropy(y.sigmoid(), y))
    with pytest.raises(CaptureError, match="use binary_cross_entropy_with_logits"):
        capture(module, X[:, :4])
