"""Every order: known answers, and that neither storage nor program order changes one."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.op_graph import OpGraph, build_graph
from graphs.orders import ORDERS, Order, OrderError, nominal_op_s

SEED = 7
PROGRAM_ORDERS = {"topo", "reversed-topo"}
"""Orders that follow the program."""
PRODUCERS_FIRST = {"topo", "lexico-topo", "b-level"}
CONSUMERS_FIRST = {"reversed-topo", "dfs-postorder"}


def names(graph: OpGraph, order_name: str) -> str:
    """The names of the ops that an order visits, one after the other."""
    return "".join(graph.op_names[op] for op in ORDERS[order_name](graph, np.random.default_rng(SEED)))


def hand_made() -> OpGraph:
    """Two sources, `d` and `b`, and a weight `w` that is not visited; the update `u` follows `w`.

    d -> a -> f      b -> c -> f      d -> c      w -> a, f -> e, e -> u
    """
    costs = {"d": 1e13, "b": 2e13, "a": 5e13, "c": 1e13, "f": 3e13, "e": 1e13}
    ops: list[dict[str, object]] = [
        {"name": "w", "type": "parameter", "colocate": 0},
        {"name": "d", "flops": costs["d"]},
        {"name": "b", "flops": costs["b"]},
        {"name": "a", "flops": costs["a"], "colocate": 0},
        {"name": "c", "flops": costs["c"]},
        {"name": "f", "flops": costs["f"]},
        {"name": "e", "flops": costs["e"]},
        {"name": "u", "phase": "optimizer", "colocate": 0},
    ]
    tensors = [(0, 0, [3]), (1, 0, [3, 4]), (2, 0, [4]), (3, 0, [5]), (4, 0, [5]), (5, 0, [6]), (6, 0, [7])]
    return build_graph("hand-made", "", ops, tensors)


@pytest.mark.parametrize(
    ("name", "visited"),
    [
        ("topo", "dbacfe"),
        ("reversed-topo", "efcabd"),
        ("dfs-preorder", "bcfeda"),
        ("dfs-postorder", "efcbad"),
        ("bfs", "bdcafe"),
        ("alpha", "abcdef"),
        ("lexico-topo", "bdacfe"),
        ("b-level", "dabcfe"),
        ("cost", "afbcde"),
    ],
)
def test_known_order(name: str, visited: str) -> None:
    assert names(hand_made(), name) == visited


def test_a_random_order_is_the_generators() -> None:
    graph = hand_made()
    drawn = {tuple(ORDERS["random"](graph, np.random.default_rng(seed))) for seed in range(20)}
    assert len(drawn) > 10
    assert names(graph, "random") == names(graph, "random")


def late_mistake(graph: OpGraph, rng: np.random.Generator) -> np.ndarray:
    return np.flatnonzero(graph.is_compute)[99]


@pytest.mark.parametrize(
    ("visit", "message"),
    [
        (lambda graph, _: np.flatnonzero(graph.is_compute)[1:], r"visits op 'd' 0 times, and 0 more wrongly"),
        (lambda *_: [], r"visits op 'd' 0 times, and 5 more wrongly; visit each op of np.flatnonzero"),
        (lambda *_: [1, 1, 2, 3, 4, 5, 6], r"visits op 'd' 2 times"),
        (lambda *_: [0, 1, 2, 3, 4, 5, 6], r"visits op 'w' 1 times"),
        (lambda *_: np.array([1, 2, 3, 4, 5, 2**40]), rf"visits op {2**40}, but ops are 0 to 7"),
        (lambda *_: [-1, 2, 3, 4, 5, 6], r"visits op -1, but"),
        (lambda graph, _: graph.is_compute, r"returns bool \(8,\); return indices of ops, int"),
        (lambda *_: [1.0, 2, 3, 4, 5, 6], r"returns float64"),
        (lambda graph, _: list(graph.op_names), r"returns <U1"),
        (lambda *_: np.arange(1, 7)[None], r"returns int64 \(1, 6\)"),
        (lambda *_: None, r"returns object \(\)"),
        (lambda *_: {1, 2, 3, 4, 5, 6}, r"returns object \(\)"),
        (lambda *_: [[1], [2, 3]], r"fails: .*ValueError"),
        (late_mistake, r"fails: .*test_orders.py:\d+: IndexError: index 99"),
    ],
)
def test_what_visits_not_each_op_once_is_no_order(
    visit: Order, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it was registered, and whoever looks it up."""
    monkeypatch.setitem(ORDERS._entries, "mine", visit)
    for made in (ORDERS["mine"], dict(ORDERS.items())["mine"]):
        with pytest.raises(OrderError, match=f"order 'mine' of graph 'hand-made' {message}") as caught:
            made(hand_made(), np.random.default_rng(SEED))
        assert "\n" not in str(caught.value)


def test_a_list_of_any_integers_is_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        ORDERS._entries, "mine", lambda *_: np.array([6, 5, 4, 3, 2, 1], dtype=np.uint8)[::-1]
    )
    assert names(hand_made(), "mine") == names(hand_made(), "topo")


def test_measured_seconds_are_the_nominal_cost() -> None:
    ops: list[dict[str, object]] = [
        {"name": "a", "flops": 1e13, "bytes_moved": 3e12},
        {"name": "b", "flops": 1e13, "seconds": {"k80": 4.0, "v100": 2.0}},
        {"name": "c", "type": "input", "flops": 1e13},
    ]
    np.testing.assert_allclose(nominal_op_s(build_graph("g", "", ops, [])), [3.0, 3.0, 0.0])


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    """Random graphs with parameters, updates, ties in cost and names unlike the program order."""
    n_ops = draw(st.integers(1, 14))
    labels = draw(st.permutations([f"op{index}" for index in range(n_ops)]))
    ops: list[dict[str, object]] = []
    for index in range(n_ops):
        kind = draw(st.sampled_from(["mm", "mm", "mm", "parameter"]))
        phase = draw(st.sampled_from(["forward", "forward", "optimizer"]))
        group = draw(st.sampled_from([None, 0, 1]))
        flops = draw(st.sampled_from([0, 0, 1, 2])) * 1e13
        ops.append({"name": labels[index], "type": kind, "phase": phase, "colocate": group, "flops": flops})
    tensors = []
    for producer in range(n_ops):
        later = [op for op in range(producer + 1, n_ops) if ops[op]["type"] != "parameter"]
        for _ in range(draw(st.integers(0, 2))):
            readers = draw(st.lists(st.sampled_from(later), unique=True, max_size=3)) if later else []
            tensors.append((producer, draw(st.sampled_from([0, 10**10])), readers))
    return build_graph("random", "", ops, tensors)


def relabelled(graph: OpGraph, data: st.DataObject) -> OpGraph:
    """The same graph in another program order and with its tensors stored in another one."""
    waiting = {op: set(graph.predecessors.row(op).tolist()) for op in range(graph.n_ops)}
    sequence: list[int] = []
    while waiting:
        ready = sorted(op for op, producers in waiting.items() if producers <= set(sequence))
        sequence.append(data.draw(st.sampled_from(ready)))
        del waiting[sequence[-1]]
    place = {op: index for index, op in enumerate(sequence)}
    ops: list[dict[str, object]] = [
        {
            "name": graph.op_names[op],
            "type": graph.op_types[op],
            "phase": graph.phases[op],
            "colocate": None if graph.colocate[op] < 0 else int(graph.colocate[op]),
            "flops": graph.flops[op],
        }
        for op in sequence
    ]
    return build_graph(graph.name, "", ops, stored_otherwise(graph, data, place))


def stored_otherwise(
    graph: OpGraph, data: st.DataObject, place: dict[int, int]
) -> list[tuple[int, float, list[int]]]:
    return [
        (
            place[int(graph.tensor_producer[tensor])],
            float(graph.tensor_bytes[tensor]),
            [place[int(reader)] for reader in graph.consumers.row(tensor)],
        )
        for tensor in data.draw(st.permutations(range(graph.n_tensors)))
    ]


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=40)
@given(graph=graphs())
def test_an_order_visits_each_compute_op_once(name: str, graph: OpGraph) -> None:
    visited = ORDERS[name](graph, np.random.default_rng(SEED))
    assert visited.dtype == np.int64
    np.testing.assert_array_equal(np.sort(visited), np.flatnonzero(graph.is_compute))


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=40)
@given(graph=graphs(), data=st.data())
def test_neither_storage_nor_program_order_changes_an_order(
    name: str, graph: OpGraph, data: st.DataObject
) -> None:
    if name in PROGRAM_ORDERS:
        stored = stored_otherwise(graph, data, {op: op for op in range(graph.n_ops)})
        ops = [dict(graph.to_networkx().nodes[op]) for op in range(graph.n_ops)]
        ops = [op | {"colocate": None if op["colocate"] < 0 else op["colocate"]} for op in ops]
        other = build_graph(graph.name, "", ops, stored)
    else:
        other = relabelled(graph, data)
    assert names(other, name) == names(graph, name)


@pytest.mark.parametrize("name", sorted(PRODUCERS_FIRST | CONSUMERS_FIRST))
@settings(max_examples=40)
@given(graph=graphs())
def test_topological_orders_are_topological(name: str, graph: OpGraph) -> None:
    visited = ORDERS[name](graph, np.random.default_rng(SEED))
    position = np.full(graph.n_ops, -1)
    position[visited] = np.arange(len(visited))
    sign = 1 if name in PRODUCERS_FIRST else -1
    inner = graph.edges[graph.is_compute[graph.edges].all(axis=1)]
    assert (sign * (position[inner[:, 1]] - position[inner[:, 0]]) > 0).all()


@pytest.mark.parametrize("name", ORDERS)
def test_a_long_chain_takes_no_time(name: str) -> None:
    n_ops = 20_000
    ops = [{"name": f"op{index:06}", "flops": 1.0} for index in range(n_ops)]
    graph = build_graph("chain", "", ops, [(op, 1.0, [op + 1]) for op in range(n_ops - 1)])
    started = time.process_time()
    visited = ORDERS[name](graph, np.random.default_rng(SEED))
    assert len(visited) == n_ops
    assert time.process_time() - started < 5.0
