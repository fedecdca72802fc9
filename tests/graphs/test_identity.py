"""What makes two graphs the same: names never do, amounts and wiring do."""

from dataclasses import replace

import numpy as np
import pytest

from graphs.identity import content_hash, graph_hash, topology_hash
from graphs.op_graph import OpGraph, build_graph


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
