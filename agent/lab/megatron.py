"""Costs of the layers of a GPT as Megatron computes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from envs.cluster.kinds import KINDS
from envs.cluster.presets import uniform
from envs.costs.op_seconds import op_seconds
from envs.pipeline.stages import PHASES
from graphs.capture.capture import capture
from graphs.families import transformer as parts
from graphs.granularity import with_granularity
from graphs.precision import with_precision
from graphs.system.array_types import FloatArray

VOCABULARY, DROPOUT, LOSS_OPS = 50_304, 0.1, ("aten._log_softmax", "aten.nll_loss")
"""Words, padded to a multiple of 128; share of dropped values; ops of the loss, which is in fp32."""


class FusedWeights(parts.Attention):
    """Attention with dropout, whose scale and mask are parts of the softmax, as in Megatron's kernel."""

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        return nn.functional.dropout(torch.softmax(query @ key.transpose(-2, -1), -1), DROPOUT)


class MegatronModel(nn.Module):
    """A GPT of three layers: the first, one like all between, and the last."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.embedding, self.drop = parts.Embedding(VOCABULARY, length, width), nn.Dropout(DROPOUT)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.blocks = nn.Sequential()
        for _ in range(3):
            attention = FusedWeights(width, heads, causal=True, joint=True, fused=False)
            both = attention, parts.FeedForward(width, 4 * width)
            dropped = (nn.Sequential(part, nn.Dropout(DROPOUT)) for part in both)
            self.blocks.append(parts.sequential_block(width, *dropped))

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time)."""
        return parts.word_loss(self.head(self.norm(self.blocks(self.drop(self.embedding(words))))), targets)


def layer_costs(
    kind: str, width: int, heads: int, length: int, batch: int, item_bytes: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sums the costs of the ops of the three layers of a `MegatronModel`, with what surrounds them.

    Args:
        item_bytes: of all floats but those of the loss and the optimizer, which are in fp32: 2 or 4.

    Returns:
        Seconds of the forward and the backward pass and of the update, and numbers of their ops, both
        (3 layers, 3); and parameters of each layer, (3,).
    """
    with torch.device("meta"):
        captured = capture(MegatronModel(width, heads, length), parts.word_batch(batch, length))
    full = with_granularity(captured, "layer")
    graph = with_precision(full, "bf16" if item_bytes == 2 else "fp32")
    phase = np.array([PHASES.index(each) for each in graph.phases])
    in_fp32 = (phase == 2) | [kind.startswith(LOSS_OPS) for kind in graph.op_types]
    graph = replace(graph, bytes_moved=np.where(in_fp32, full.bytes_moved, graph.bytes_moved))
    seconds = op_seconds(graph, uniform("one", KINDS[kind].device(), 1, 1e9))[:, 0]
    layer = np.searchsorted(np.unique(graph.unit_of[~graph.is_source]), graph.unit_of)
    sums, counts, runs = np.zeros((3, 3)), np.zeros((3, 3)), seconds > 0
    np.add.at(sums, (layer[runs], phase[runs]), seconds[runs])
    np.add.at(counts, (layer[runs], phase[runs]), 1)
    weights = np.flatnonzero([full.op_types[op] == "parameter" for op in full.tensor_producer])
    parameters = np.zeros(3)
    np.add.at(parameters, layer[full.tensor_producer[weights]], full.tensor_bytes[weights] / 4)
    return sums, counts, parameters
