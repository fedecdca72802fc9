"""Small models that the tests of capturing share, and how they read captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.capture.capture import capture
from graphs.op_graph import OpGraph


class Mlp(nn.Module):
    """Two linear layers without a loss; its outputs are (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Calls(nn.Module):
    """A linear layer within any function of the layer and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(4, 4)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.layer, *inputs)


class Once(nn.Module):
    """One function of trainable tensors, then of the inputs."""

    def __init__(self, function: object, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.held = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*self.held, *inputs)  # type: ignore[operator]


class Convnet(nn.Module):
    """Convolution, batch norm and pooling with a cross-entropy loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = F.relu(self.norm(self.conv(images)))
        return F.cross_entropy(self.head(features.mean((2, 3))), labels)


class TiedLm(nn.Module):
    """An embedding whose weights are the head's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embed(tokens)), tokens)


CONVNET_INPUTS = (torch.zeros(2, 3, 6, 6), torch.zeros(2, dtype=torch.long))


def heard(module: nn.Module, inputs: Any, **settings: Any) -> tuple[OpGraph, list[str]]:
    """Captures a module; returns its graph and what is said of it."""
    lines: list[str] = []
    return capture(module, inputs, notify=lines.append, **settings), lines


def op(graph: OpGraph, name: str) -> int:
    return graph.op_names.index(name)


def named(graph: OpGraph, ops: Any) -> list[str]:
    return [graph.op_names[index] for index in ops]


def readers(graph: OpGraph, name: str) -> list[str]:
    return named(graph, graph.successors.row(op(graph, name)))


def fingerprint(graph: OpGraph) -> str:
    """Everything a graph holds but measured seconds."""
    texts = (graph.op_names, graph.op_types, graph.modules, graph.phases)
    costs = (graph.flops, graph.bytes_moved, graph.resident_bytes, graph.colocate)
    edges = (graph.tensor_producer, graph.tensor_bytes, graph.consumers.ptr, graph.consumers.items)
    return repr([*texts, *(array.tolist() for array in (*costs, *edges))])
