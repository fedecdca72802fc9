"""A graph, a cluster and a model for the tests of pipelines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agent import Pipeline
from envs.cluster.presets import get_cluster
from graphs.dataset import load_family

GRAPH = load_family("gpt")[0]
PIPELINE = Pipeline("1f1b", 8)
CLUSTER = get_cluster("4xv100:2")


class Classifier(nn.Module):
    """A perceptron that returns the loss of its labels, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make() -> tuple[nn.Module, dict[str, Tensor]]:
    """Makes a model and a batch of 12, for `--model`."""
    return Classifier(), {"features": torch.zeros(12, 8), "labels": torch.zeros(12, dtype=torch.long)}
