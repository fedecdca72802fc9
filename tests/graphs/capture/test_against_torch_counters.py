"""Captured steps against what torch itself counts: flops by `FlopCounterMode`, memory by `MemTracker`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from envs.cluster.presets import get_cluster
from envs.placements.placement import Placement
from envs.simulator.checked import simulate
from graphs.capture.capture import capture
from graphs.capture.step import Step
from graphs.op_graph import OpGraph
from tests.graphs.test_precision import Transformer, convnet, perceptron

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")


class Last(nn.Module):
    """A recurrent layer and a head on its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][-1])


class Heads(nn.Module):
    """Attention of separate ops on processors, since it has dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


class Looks(nn.Module):
    """A bag of embeddings and a perceptron, as of a recommender."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(1000, 64), perceptron()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.bag(tokens))


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
    "attention": (lambda: nn.Sequential(nn.Linear(16, 16), Heads()), torch.zeros(2, 4, 32, 16)),
    "recommender": (Looks, TOKENS),
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


def product_flops(graph: OpGraph, kind: str = "") -> float:
    return sum(
        float(graph.flops[op]) for op in np.flatnonzero(graph.gemm.any(axis=1)) if kind in graph.op_types[op]
    )


@pytest.mark.parametrize("name", MODELS)
def test_products_have_the_flops_that_torch_counts(name: str) -> None:
    build, inputs = MODELS[name]
    module = build()
    assert product_flops(capture(module, inputs, gpu=None)) == torch_flops(module, inputs) > 0


def test_torch_counts_fused_attention_on_the_cpu_since_2_15() -> None:
    module, tokens = Transformer(), TOKENS
    graph = capture(module, tokens)
    attention = product_flops(graph, "attention")
    assert attention == 2 * (2 + 5) * 2 * 4 * 4 * 16 * 16 * 16
    is_counted = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry
    assert product_flops(graph) - (0 if is_counted else attention) == torch_flops(module, tokens)


def test_torch_counts_the_backward_pass_of_grouped_convolutions_too_high() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8))
    ours, theirs = product_flops(capture(module, IMAGES)), torch_flops(module, IMAGES)
    depthwise = 2 * 4 * 30 * 30 * 8 * 9
    assert theirs - ours == depthwise * (8 - 1)  # the gradient of the weight, as if of one group


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
