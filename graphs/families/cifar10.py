"""ENAS-like convolutional networks: one random normal cell and one random reduction cell, stacked.

Source: Pham et al. 2018 (arXiv 1802.03268), section 2.3; as placement benchmark: Addanki et al. 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from graphs.families import Drawn, family, pick
from graphs.families.layers import Classifier, ConvNorm, batch_norm, image_batch

Edge = tuple[int, str]
Node = tuple[Edge, Edge]


def _convolution(channels: int, stride: int) -> nn.Module:
    """ReLU, convolution, batch normalisation."""
    convolution = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
    return nn.Sequential(nn.ReLU(), convolution, batch_norm(channels))


def _separable(channels: int, kernel: int, stride: int, twice: bool) -> nn.Module:
    """ReLU, depthwise and pointwise convolution, batch normalisation; all of it again if `twice`."""
    layers: list[nn.Module] = []
    for step in (stride, 1) if twice else (stride,):
        depthwise = nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=False)
        pointwise = nn.Conv2d(channels, channels, 1, bias=False)
        layers += [nn.ReLU(), depthwise, pointwise, batch_norm(channels)]
    return nn.Sequential(*layers)


def _identity(channels: int, stride: int) -> nn.Module:
    return nn.Identity() if stride == 1 else ConvNorm(channels, channels, stride=stride, relu=False)


OPERATIONS: dict[str, Callable[[int, int, bool], nn.Module]] = {
    "conv3": lambda channels, stride, twice: _convolution(channels, stride),
    "sep3": lambda channels, stride, twice: _separable(channels, 3, stride, twice),
    "sep5": lambda channels, stride, twice: _separable(channels, 5, stride, twice),
    "average": lambda channels, stride, twice: nn.AvgPool2d(3, stride, 1),
    "max": lambda channels, stride, twice: nn.MaxPool2d(3, stride, 1),
    "identity": lambda channels, stride, twice: _identity(channels, stride),
}


class Cell(nn.Module):
    """A DAG of nodes, each the sum of two operations; loose ends are concatenated and projected.

    Args:
        nodes: two (input, operation) edges per node.
        inputs: channels of the two inputs.
        strides: strides that bring each input to the resolution of the second one.
        stride: stride of the operations that read an input of the cell; 2 in a reduction cell.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: tuple[int, int],
        channels: int,
        *,
        strides: tuple[int, int],
        stride: int,
        twice: bool,
    ) -> None:
        super().__init__()
        self.nodes = nodes
        self.calibrate = nn.ModuleList(
            ConvNorm(size, channels, stride=step) for size, step in zip(inputs, strides, strict=True)
        )
        self.operations = nn.ModuleList(
            OPERATIONS[operation](channels, stride if source < 2 else 1, twice)
            for node in nodes
            for source, operation in node
        )
        used = {source for node in nodes for source, _ in node}
        self.loose = [state for state in range(2, 2 + len(nodes)) if state not in used]
        self.project = ConvNorm(channels * len(self.loose), channels)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Map the outputs of the last two cells to (batch, channels, side, side)."""
        states = [self.calibrate[0](before), self.calibrate[1](last)]
        for index, (left, right) in enumerate(self.nodes):
            first, second = self.operations[2 * index], self.operations[2 * index + 1]
            states.append(first(states[left[0]]) + second(states[right[0]]))
        return self.project(torch.cat([states[state] for state in self.loose], 1))


class Network(nn.Module):
    """A stem and cells, each reading the two before; channels double where the resolution halves.

    Args:
        normal, reduction: per node of the cell its two (input, operation) edges; inputs 0 and 1 are the
            outputs of the two cells before, 2 is the first node.
        stages: normal cells at each resolution; a reduction cell is between two stages.
        twice: true if a separable convolution is applied twice, as in ENAS.
    """

    def __init__(
        self,
        normal: Sequence[Node],
        reduction: Sequence[Node],
        stages: Sequence[int],
        channels: int,
        *,
        twice: bool,
    ) -> None:
        super().__init__()
        self.stem = ConvNorm(3, channels, 3)
        self.cells = nn.ModuleList()
        inputs, strides = (channels, channels), (1, 1)
        for stage, normal_cells in enumerate(stages):
            reduces = [True] * (stage > 0) + [False] * normal_cells
            for reduce in reduces:
                channels *= 2 if reduce else 1
                nodes, stride = (reduction, 2) if reduce else (normal, 1)
                cell = Cell(nodes, inputs, channels, strides=strides, stride=stride, twice=twice)
                self.cells.append(cell)
                inputs, strides = (inputs[1], channels), (stride, 1)
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, channels, side, side) of images (batch, 3, side, side)."""
        before: Tensor = self.stem(images)
        last = before
        for cell in self.cells:
            before, last = last, cell(before, last)
        return last


def draw_cell(rng: np.random.Generator, nodes: int) -> list[Node]:
    """A random cell; its first node reads both inputs, so that no cell is left unused."""
    operations = tuple(OPERATIONS)
    cell: list[Node] = [((0, pick(rng, operations)), (1, pick(rng, operations)))]
    for index in range(1, nodes):
        left, right = (int(source) for source in rng.integers(index + 2, size=2))
        cell.append(((left, pick(rng, operations)), (right, pick(rng, operations))))
    return cell


@family("cifar10")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 8 cells of 2 to 6 nodes on 32 x 32 images, batch 32 to 256."""
    nodes = int(rng.integers(2, 7))
    stages = pick(rng, [(1,), (2,), (3,), (1, 1), (2, 1), (2, 2), (1, 1, 1), (2, 2, 2)])
    normal, reduction = draw_cell(rng, nodes), draw_cell(rng, nodes)
    channels = pick(rng, [48, 64, 96, 128, 192])
    twice = nodes < 6 and bool(rng.random() < 0.5)
    network = Network(normal, reduction, stages, channels, twice=twice)
    return Classifier(network, network.channels, 10), image_batch(pick(rng, [32, 64, 128, 256]), 32)
