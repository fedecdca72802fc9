"""What makes two graphs the same, and the longest paths through one."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from graphs.identity import content_hash, graph_hash, topology_hash
from graphs.levels import b_level, t_level
from graphs.op_graph import OpGraph, build_graph
from tests.envs.random_problems import random_graph


def small() -> OpGraph:
    ops = [
        {"name": "w", "type": "parameter", "resident_bytes": 8, "colocate": 7},
        {"name": "a", "type": "mm", "flops": 10, "colocate": 7},
        {"name": "b", "type": "relu", "flops": 1},
    ]
    return build_graph("small", "ours", ops, [(0, 8, [1]), (1, 4, [2])])


def renamed(graph: OpGraph) -> OpGraph:
    names = tuple(f"op{op}" for op in range(graph.n_ops))
    return replace(graph, name="other", family="", op_names=names, modules=names)


def test_names_count_in_files_alone() -> None:
    graph = small()
    assert content_hash(renamed(graph)) != content_hash(graph)
    assert graph_hash(renamed(graph)) == graph_hash(graph)
    assert topology_hash(renamed(graph)) == topology_hash(graph)


def test_what_only_some_graphs_say_is_no_difference() -> None:
    detailed = replace(small(), dtypes=("fp32",) * 3, seconds={"v100": np.ones(3)})
    assert graph_hash(detailed) == graph_hash(small())


def test_ids_of_groups_are_names() -> None:
    graph = small()
    assert graph_hash(replace(graph, colocate=np.array([3, 3, -1]))) == graph_hash(graph)
    assert graph_hash(replace(graph, colocate=np.array([3, 3, 3]))) != graph_hash(graph)


@pytest.mark.parametrize("amount", ["flops", "bytes_moved", "resident_bytes", "tensor_bytes"])
def test_costs_count_in_the_graph_and_not_in_its_topology(amount: str) -> None:
    graph = small()
    other = replace(graph, **{amount: getattr(graph, amount) + 1})
    assert graph_hash(other) != graph_hash(graph)
    assert topology_hash(other) == topology_hash(graph)


def test_types_and_wiring_count_in_both() -> None:
    graph = small()
    gelu = replace(graph, op_types=("parameter", "mm", "gelu"))
    ops = [{"name": name} | ({"type": kind}) for name, kind in zip("wab", graph.op_types, strict=True)]
    rewired = build_graph("small", "ours", ops, [(0, 8, [1, 2]), (1, 4, [])])
    for hashed in (graph_hash, topology_hash):
        assert len({hashed(graph), hashed(gelu), hashed(rewired)}) == 3


@pytest.mark.parametrize("seed", range(10))
def test_levels_are_longest_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 12)
    op_cost, tensor_cost = rng.random(graph.n_ops), rng.random(graph.n_tensors)
    view = nx.DiGraph()
    view.add_nodes_from(range(graph.n_ops))
    for producer, reader, tensor in graph.to_networkx().edges(data="tensor"):
        shorter = view.get_edge_data(producer, reader, {"weight": 0.0})["weight"]
        view.add_edge(producer, reader, weight=max(shorter, op_cost[producer] + tensor_cost[tensor]))
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
