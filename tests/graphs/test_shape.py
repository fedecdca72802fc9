"""The shape of graphs, by hand."""

import pytest

from graphs.dataset import load_family
from graphs.op_graph import OpGraph, build_graph
from graphs.shape import GraphShape, shape_of


def made_of(edges: list[tuple[int, int]], n_ops: int) -> OpGraph:
    ops = [{"name": f"op{op}", "flops": 1e10} for op in range(n_ops)]
    readers: dict[int, list[int]] = {}
    for producer, consumer in edges:
        readers.setdefault(producer, []).append(consumer)
    return build_graph("g", "", ops, [(op, 1e7, found) for op, found in readers.items()])


def test_a_chain() -> None:
    shape = shape_of(made_of([(0, 1), (1, 2), (2, 3)], 4))
    assert (shape.n_ops, shape.depth, shape.width, shape.branching) == (4, 1.0, 0.25, 1.0)
    assert (shape.chain_fraction, shape.parallelism) == (0.75, pytest.approx(1.0))
    assert shape.communication == pytest.approx(3 * 1e-3 / (4 * 1e-3))


def test_a_fork_and_join() -> None:
    shape = shape_of(made_of([(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)], 5))
    assert (shape.depth, shape.width, shape.branching) == (0.6, 0.6, pytest.approx(6 / 4))
    assert (shape.chain_fraction, shape.parallelism) == (0.0, pytest.approx(5 / 3))


def test_ops_that_do_not_meet_are_as_parallel_as_they_are_many() -> None:
    shape = shape_of(made_of([], 7))
    assert (shape.width, shape.parallelism, shape.branching) == (1.0, pytest.approx(7.0), 0.0)


def test_a_graph_without_compute_has_no_shape() -> None:
    empty = build_graph("g", "", [{"name": "w", "type": "parameter"}], [])
    assert shape_of(empty) == GraphShape(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_captured_graphs_have_shares_and_families_differ() -> None:
    shapes = {family: shape_of(load_family(family)[0]) for family in ("cifar10", "ptb", "vit")}
    for shape in shapes.values():
        for share in (shape.depth, shape.width, shape.chain_fraction):
            assert 0 < share < 1
        assert shape.parallelism >= 1
    assert shapes["ptb"].parallelism != shapes["vit"].parallelism
