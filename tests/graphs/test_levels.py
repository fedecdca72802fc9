"""Levels against the longest paths that networkx finds."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from graphs.levels import b_level, t_level
from graphs.op_graph import OpGraph, build_graph


def random_graph(seed: int, n_ops: int = 12) -> OpGraph:
    rng = np.random.default_rng(seed)
    tensors = []
    for producer in rng.permutation(n_ops - 1).tolist():
        later = np.arange(producer + 1, n_ops)
        readers = rng.choice(later, size=rng.integers(0, min(4, len(later) + 1)), replace=False)
        tensors.append((producer, 1.0, readers.tolist()))
    return build_graph("random", "", [{"name": f"op{index}"} for index in range(n_ops)], tensors)


@pytest.mark.parametrize("seed", range(10))
def test_levels_are_longest_paths(seed: int) -> None:
    graph = random_graph(seed)
    rng = np.random.default_rng(seed + 100)
    op_cost, tensor_cost = rng.random(graph.n_ops), rng.random(graph.n_tensors)
    view = nx.DiGraph()
    view.add_nodes_from(range(graph.n_ops))
    for producer, reader, tensor in graph.to_networkx().edges(data="tensor"):
        view.add_edge(producer, reader, weight=op_cost[producer] + tensor_cost[tensor])
    below, above = b_level(graph, op_cost, tensor_cost), t_level(graph, op_cost, tensor_cost)
    for op in range(graph.n_ops):
        after = view.subgraph(nx.descendants(view, op) | {op})
        before = view.subgraph(nx.ancestors(view, op) | {op})
        ends = [
            nx.path_weight(view, path, "weight") + op_cost[path[-1]]
            for target in after
            for path in nx.all_simple_paths(after, op, target)
        ]
        starts = [
            nx.path_weight(view, path, "weight")
            for source in before
            for path in nx.all_simple_paths(before, source, op)
        ]
        assert below[op] == pytest.approx(max([*ends, op_cost[op]]))
        assert above[op] == pytest.approx(max([*starts, 0.0]))
    assert (below + above).max() == pytest.approx(below.max())


def test_an_array_of_another_length_is_refused() -> None:
    graph = build_graph("pair", "", [{"name": "a"}, {"name": "b"}], [(0, 1.0, [1])])
    with pytest.raises(ValueError, match=r"graph 'pair': op_cost has shape \(3,\); expected \(2,\)"):
        b_level(graph, np.ones(3), np.ones(1))
    with pytest.raises(ValueError, match=r"graph 'pair': tensor_cost has shape \(2,\); expected \(1,\)"):
        t_level(graph, np.ones(2), np.ones(2))
