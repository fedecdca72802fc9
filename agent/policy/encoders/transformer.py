"""Attention along the program order, between rounds of messages along the edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.policy.encoders.base import Encoder, encoder
from agent.policy.encoders.sage import Round
from agent.policy.graph_batch import GraphBatch

HEADS = 4
WINDOW = 64
"""Ops of a window; an op attends to its own window, the one before and the one after."""


class Windows:
    """Windows along the program order of each graph of a batch.

    Attributes:
        node: node at each position, int64 (n_windows, WINDOW); 0 where there is none.
        position: position of each node among all of `node`, int64 (n_nodes,).
        visible: which positions of a window and its two neighbours have a node of the same graph,
            bool (n_windows, 3 * WINDOW).
    """

    def __init__(self, batch: GraphBatch) -> None:
        device = batch.nodes.device
        sizes = batch.sizes.flatten().long()
        per_graph = (sizes + WINDOW - 1) // WINDOW
        first_window = per_graph.cumsum(0) - per_graph
        step = torch.arange(len(batch.nodes), device=device) - batch.start[batch.member]
        self.position = first_window[batch.member] * WINDOW + step
        n_windows = int(per_graph.sum())
        self.node = torch.zeros(n_windows * WINDOW, dtype=torch.int64, device=device)
        self.node[self.position] = torch.arange(len(batch.nodes), device=device)
        taken = torch.zeros(n_windows * WINDOW, dtype=torch.bool, device=device)
        taken[self.position] = True
        self.node, taken = self.node.view(n_windows, WINDOW), taken.view(n_windows, WINDOW)
        graph = torch.repeat_interleave(torch.arange(len(sizes), device=device), per_graph)
        same = graph[1:] == graph[:-1]
        nothing = torch.zeros_like(taken[:1])
        before = torch.cat([nothing, taken[:-1] & same[:, None]])
        after = torch.cat([taken[1:] & same[:, None], nothing])
        self.visible = torch.cat([before, taken, after], dim=1)

    def with_neighbours(self, rows: Tensor) -> Tensor:
        """Puts each window's rows between its neighbours': (n, WINDOW, width) -> (n, 3 * WINDOW, width)."""
        nothing = torch.zeros_like(rows[:1])
        return torch.cat([torch.cat([nothing, rows[:-1]]), rows, torch.cat([rows[1:], nothing])], dim=1)


class AlongProgram(nn.Module):
    """Attention of every op to those in its window and the two next to it, with a bias for each distance."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key_value = nn.Linear(hidden, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden)
        self.distance = nn.Parameter(torch.zeros(heads, 4 * WINDOW))

    def forward(self, state: Tensor, windows: Windows) -> Tensor:
        message = self.norm(state)[windows.node]
        key, value = self.key_value(windows.with_neighbours(message)).chunk(2, dim=2)
        attended = F.scaled_dot_product_attention(
            self._by_head(self.query(message)),
            self._by_head(key),
            self._by_head(value),
            attn_mask=self._bias(windows),
        )
        merged = attended.transpose(1, 2).reshape(-1, state.shape[1])
        update: Tensor = self.out(merged[windows.position])
        return state + update

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], self.heads, -1).transpose(1, 2)

    def _bias(self, windows: Windows) -> Tensor:
        """Addend of the attention logits, (n_windows, heads, WINDOW, 3 * WINDOW)."""
        device = windows.node.device
        own, other = torch.arange(WINDOW, device=device), torch.arange(3 * WINDOW, device=device)
        by_distance = self.distance[:, other[None] - own[:, None] + WINDOW]
        return by_distance[None].masked_fill(~windows.visible[:, None, None, :], -torch.inf)


@encoder("transformer")
class Transformer(Encoder):
    """Rounds of mean messages along the edges, each followed by local attention along the program order.

    Source: messages, then attention over the ops in order, as GDP (Zhou et al. 2019, arXiv 1910.01578); the
    two alternating as in GraphGPS (Rampasek et al. 2022, arXiv 2205.12454). Attention is within windows, so
    cost and memory grow with the number of ops, not with its square.
    """

    def __init__(self, n_features: int, hidden: int, rounds: int) -> None:
        super().__init__(n_features, hidden, rounds)
        heads = HEADS if hidden % HEADS == 0 else 1
        self.input_proj = nn.Linear(n_features, hidden)
        self.rounds = nn.ModuleList(Round(hidden) for _ in range(rounds))
        self.attentions = nn.ModuleList(AlongProgram(hidden, heads) for _ in range(rounds))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, batch: GraphBatch) -> Tensor:
        state = self.input_proj(batch.nodes)
        windows = Windows(batch)
        for one_round, attention in zip(self.rounds, self.attentions, strict=True):
            state = attention(one_round(state, batch), windows)
        embedding: Tensor = self.norm(state)
        return embedding
