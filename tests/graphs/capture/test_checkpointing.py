"""Activation checkpointing is dropped by a trace, and a line says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphs.capture.capture import capture


class Checkpointed(nn.Module):
    """Two layers, the first of which may be checkpointed."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.body, self.head, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 1), reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.head(self.body(x).relu()).mean()
        inner = checkpoint(lambda given: self.body(given).relu(), x, use_reentrant=self.reentrant)
        return self.head(inner).mean()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_dropped_checkpointing_is_said(reentrant: bool | None, training: bool) -> None:
    said: list[str] = []
    x = torch.randn(2, 4, requires_grad=True)
    capture(Checkpointed(reentrant), x, training=training, notify=said.append)
    dropped = [line for line in said if "torch.utils.checkpoint is captured as a plain call" in line]
    assert len(dropped) == (reentrant is not None and training)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_is_trained(reentrant: bool) -> None:
    x, ops = torch.randn(2, 4), []
    for variant in (None, reentrant):
        graph = capture(Checkpointed(variant), x, notify=lambda line: None)
        ops.append(sorted(name.rsplit("/", 1)[-1] for name in graph.op_names))
        assert {"adam/body.weight", "adam/head.weight"} <= set(graph.op_names)
    assert ops[0] == ops[1]
