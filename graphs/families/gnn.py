"""Graph networks over edges of several relations: their messages are summed where they arrive.

Sources: Kipf and Welling 2017 (gcn, arXiv 1609.02907); Hamilton et al. 2017 (sage, arXiv 1706.02216);
Velickovic et al. 2018 (gat, arXiv 1710.10903); Battaglia et al. 2018
(edge, arXiv 1806.01261); Schlichtkrull et al. 2018 (relations, arXiv 1703.06103); Xu et al. 2018 (the head
that reads all layers, arXiv 1806.03536).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import Drawn, family, pick


def arriving(messages: Tensor, target: Tensor, nodes: int) -> Tensor:
    """Sums messages (edges, ...) by the node that each arrives at, `target`, int (edges,); (nodes, ...)."""
    return messages.new_zeros(nodes, *messages.shape[1:]).index_add(0, target, messages)


def degree(target: Tensor, nodes: int, like: Tensor) -> Tensor:
    """Counts the edges that arrive at each node, at least 1, (nodes, 1)."""
    ones = like.new_ones(len(target), 1)
    return arriving(ones, target, nodes).clamp(min=1.0)


class Gcn(nn.Module):
    """Messages over the square root of both ends' degrees."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Map nodes (nodes, width) to the same shape, along edges from `source` to `target`, int (edges,)."""
        scale = degree(target, len(x), x).rsqrt()
        return arriving((self.linear(x) * scale).index_select(0, source), target, len(x)) * scale


class Sage(nn.Module):
    """The mean of the messages beside the node itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """As `Gcn.forward`."""
        mean = arriving(x.index_select(0, source), target, len(x)) / degree(target, len(x), x)
        return self.own(x) + self.others(mean)


class Gat(nn.Module):
    """Attention of each node over the messages that arrive, with four heads."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(width, width)
        self.send, self.receive = nn.Linear(width, heads, bias=False), nn.Linear(width, heads, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """As `Gcn.forward`."""
        nodes = self.linear(x)
        sent, received = self.send(nodes).index_select(0, source), self.receive(nodes).index_select(0, target)
        scores = F.leaky_relu(sent + received, 0.2)
        weights = (scores - scores.detach().amax(0)).exp()
        sums = arriving(weights, target, len(x)).clamp(min=1e-6)
        shares = (weights / sums.index_select(0, target)).unsqueeze(-1)
        messages = nodes.unflatten(-1, (self.heads, -1)).index_select(0, source) * shares
        return arriving(messages, target, len(x)).flatten(1)


class Edge(nn.Module):
    """Messages from a perceptron of both ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """As `Gcn.forward`."""
        ends = torch.cat([x.index_select(0, source), x.index_select(0, target)], 1)
        return self.update(torch.cat([x, arriving(self.message(ends), target, len(x))], 1))


KINDS: dict[str, Callable[[int], nn.Module]] = {"gcn": Gcn, "sage": Sage, "gat": Gat, "edge": Edge}


class Layer(nn.Module):
    """Message passing along every relation, normalised, added to the nodes."""

    def __init__(self, kind: str, relations: int, width: int) -> None:
        super().__init__()
        self.relations = nn.ModuleList(KINDS[kind](width) for _ in range(relations))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, edges: Sequence[Tensor]) -> Tensor:
        """Map nodes (nodes, width) to the same shape; `edges` has int (2, edges) of each relation."""
        normed = self.norm(x)
        for relation, ends in zip(self.relations, edges, strict=True):
            x = x + F.relu(relation(normed, ends[0], ends[1]))
        return x


class NodeClassifier(nn.Module):
    """Cross-entropy of the classes of nodes.

    Args:
        kinds: names of `KINDS`, one a layer.
        relations: sets of edges, each with weights of its own in every layer.
        inputs, width, classes: channels of a node before, within and after the layers.
        all_layers: true if the head reads the nodes of every layer, not of the last alone.
    """

    def __init__(
        self, kinds: Sequence[str], relations: int, inputs: int, width: int, classes: int, *, all_layers: bool
    ) -> None:
        super().__init__()
        self.all_layers = all_layers
        self.enter = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(Layer(kind, relations, width) for kind in kinds)
        self.head = nn.Linear(width * (len(kinds) if all_layers else 1), classes)

    def forward(self, features: Tensor, labels: Tensor, *edges: Tensor) -> Tensor:
        """Loss of features (nodes, inputs) and labels, int (nodes,); `edges` are those of each relation."""
        states = [self.enter(features)]
        for layer in self.layers:
            states.append(layer(states[-1], edges))
        return F.cross_entropy(self.head(torch.cat(states[1:], 1) if self.all_layers else states[-1]), labels)


@family("gnn")
def draw(rng: np.random.Generator) -> Drawn:
    """2 to 8 layers of one kind or mixed, width 128 to 512, 1 to 4 relations, 10k to 50k nodes."""
    layers, kinds_known = int(rng.integers(2, 9)), tuple(KINDS)
    one = pick(rng, kinds_known)
    mixed = bool(rng.random() < 0.4)
    kinds = [pick(rng, kinds_known) if mixed else one for _ in range(layers)]
    relations, inputs = int(rng.integers(1, 5)), pick(rng, [64, 128, 512])
    width, classes = pick(rng, [128, 256, 512]), pick(rng, [16, 64, 256])
    model = NodeClassifier(kinds, relations, inputs, width, classes, all_layers=bool(rng.random() < 0.4))
    nodes = pick(rng, [10_000, 20_000, 50_000])
    degrees = rng.choice([2, 4, 8], size=relations)
    edges = tuple(torch.zeros(2, nodes * int(degree), dtype=torch.long) for degree in degrees)
    labels = torch.zeros(nodes, dtype=torch.long)
    return model, (torch.zeros(nodes, inputs), labels, *edges)
