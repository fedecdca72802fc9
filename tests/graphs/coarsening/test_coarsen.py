"""Coarsening: properties on random graphs, and known answers on small models."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import Csr, GraphError, OpGraph, build_graph
from graphs.coarsening.coarsen import Coarsening, coarsen
from graphs.coarsening.layers import layer_of
from graphs.dataset import load_family
from tests.benchmarks.cases import layered_graph
from tests.envs.random_problems import random_graph

PATHS = ("", "a", "a.0", "a.0.x", "a.1.x", "b.x", "b.y")


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    graph = random_graph(rng, draw(st.integers(1, 60)), ties=draw(st.booleans()))
    modules = tuple(str(path) for path in rng.choice(PATHS, graph.n_ops))
    names = tuple(
        f"{module}@{rng.integers(1, 4)}/op_{op}" if rng.random() < 0.5 else f"op_{op}"
        for op, module in enumerate(modules)
    )
    return replace(graph, modules=modules, op_names=names)


def members(found: Coarsening) -> list[set[int]]:
    return [set(np.flatnonzero(found.part == part).tolist()) for part in range(found.coarse.n_ops)]


@given(graphs(), st.integers(1, 20))
def test_at_most_so_many_groups_keep_colocation_and_the_sums_of_costs(graph: OpGraph, n_groups: int) -> None:
    found = coarsen(graph, n_groups)
    coarse = found.coarse
    assert len(coarse.units) <= n_groups or coarse is graph
    assert len(coarse.units) <= max(n_groups, len(graph.units))
    group = coarse.unit_of[found.part]
    for unit in range(len(graph.units)):
        assert len(set(group[graph.units.row(unit)].tolist())) == 1
    for label in ("flops", "bytes_moved", "resident_bytes"):
        assert getattr(coarse, label).sum() == pytest.approx(getattr(graph, label).sum())
        assert getattr(coarse, label) == pytest.approx(found.total(getattr(graph, label)))
    for kind, seconds in graph.seconds.items():
        assert coarse.seconds[kind] == pytest.approx(found.total(seconds))


@given(graphs(), st.integers(1, 20))
def test_coarse_ops_form_no_cycle_and_tensors_keep_their_ends(graph: OpGraph, n_groups: int) -> None:
    found = coarsen(graph, n_groups)
    # An OpGraph is in program order by its own check, so having been made the coarse graph has no cycle.
    sent = {
        (found.part[producer], found.part[reader]): 0.0
        for producer, reader in graph.edges.tolist()
        if found.part[producer] != found.part[reader]
    }
    for tensor, producer in enumerate(graph.tensor_producer.tolist()):
        for reader in {found.part[reader] for reader in graph.consumers.row(tensor).tolist()}:
            if reader != found.part[producer]:
                sent[found.part[producer], reader] += graph.tensor_bytes[tensor]
    kept = dict.fromkeys(sent, 0.0)
    for tensor, producer in enumerate(found.coarse.tensor_producer.tolist()):
        for reader in found.coarse.consumers.row(tensor).tolist():
            kept[producer, reader] += found.coarse.tensor_bytes[tensor]
    assert kept == pytest.approx(sent)


@given(graphs(), st.integers(1, 20))
def test_coarse_ops_mix_neither_phases_nor_what_is_free_with_what_runs(graph: OpGraph, n_groups: int) -> None:
    found = coarsen(graph, n_groups)
    for part, ops in enumerate(members(found)):
        assert {bool(graph.is_source[op]) for op in ops} == {bool(found.coarse.is_source[part])}
        if not found.coarse.is_source[part]:
            assert {graph.phases[op] for op in ops} == {found.coarse.phases[part]}


@given(graphs(), st.integers(1, 20), st.integers(1, 4))
def test_a_placement_of_the_groups_is_one_of_the_ops(graph: OpGraph, n_groups: int, n_devices: int) -> None:
    found = coarsen(graph, n_groups)
    devices = np.random.default_rng(0).integers(n_devices, size=len(found.coarse.units))
    expanded = found.expand(devices[found.coarse.unit_of])
    assert all(len(set(expanded[graph.units.row(unit)])) == 1 for unit in range(len(graph.units)))
    rows = np.stack([devices[found.coarse.unit_of]] * 2)
    assert (found.expand(rows) == expanded).all()


@given(graphs(), st.integers(1, 20), st.randoms(use_true_random=False))
def test_it_does_not_matter_how_tensors_and_groups_are_stored(
    graph: OpGraph, n_groups: int, random: object
) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    shuffled = rng.permutation(graph.n_tensors)
    rows = [graph.consumers.row(tensor) for tensor in shuffled]
    ptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    label = rng.permutation(int(graph.colocate.max(initial=0)) + 1)
    stored_otherwise = replace(
        graph,
        tensor_producer=graph.tensor_producer[shuffled],
        tensor_bytes=graph.tensor_bytes[shuffled],
        consumers=Csr(ptr, np.concatenate([*rows, np.zeros(0, dtype=np.int64)])),
        colocate=np.where(graph.colocate >= 0, label[graph.colocate], -1),
    )
    assert coarsen(graph, n_groups).part.tolist() == coarsen(stored_otherwise, n_groups).part.tolist()


def test_a_graph_with_few_units_is_left_as_it_is() -> None:
    graph = layered_graph(100)
    found = coarsen(graph, 100)
    assert found.coarse is graph
    assert found.part.tolist() == list(range(100))
    assert coarsen(graph, 99).coarse.n_ops < 100


def test_less_than_one_group_is_refused() -> None:
    with pytest.raises(GraphError, match=r"graph 'layered-10': cannot have 0 groups; ask for at least 1"):
        coarsen(layered_graph(10), 0)


def unrolled(layers: int, steps: int, ops_a_step: int) -> OpGraph:
    """Layers of cells that run step by step, all layers a step, each cell a chain."""
    ops: list[dict[str, object]] = []
    tensors = []
    last: dict[int, int] = {}
    for step in range(steps):
        below = -1
        for layer in range(layers):
            for part in range(ops_a_step):
                scope = f"cells.{layer}@{step}" if step else f"cells.{layer}"
                ops.append({"name": f"{scope}/op_{part}", "module": f"cells.{layer}", "flops": 1e9})
                at = len(ops) - 1
                before = [at - 1] if part else [op for op in (below, last.get(layer, -1)) if op >= 0]
                tensors += [(op, 1.0, [at]) for op in before]
            below = last[layer] = len(ops) - 1
    return build_graph("unrolled", "", ops, tensors)


def test_an_unrolled_layer_is_cut_between_layers_and_time_steps() -> None:
    graph = unrolled(layers=3, steps=8, ops_a_step=5)
    by_cell = coarsen(graph, 24)
    assert [set(range(at, at + 5)) for at in range(0, 120, 5)] == members(by_cell)
    # Fewer groups than cells: stretches of whole cells.
    assert {len(ops) % 5 for ops in members(coarsen(graph, 6))} == {0}


def test_what_the_step_waits_for_is_grouped_apart_from_what_has_time() -> None:
    """A chain whose every op also feeds a side op, which only the last op reads."""
    length = 200
    ops = [{"name": f"{kind}{at}", "flops": 1e9} for at in range(length) for kind in ("chain", "side")]
    chain = [(2 * at, 1.0, [2 * at + 1, *([2 * at + 2] if at + 1 < length else [])]) for at in range(length)]
    sides = [(2 * at + 1, 1.0, [2 * length]) for at in range(length)]
    graph = build_graph("sides", "", [*ops, {"name": "last", "flops": 1e9}], [*chain, *sides])
    groups = members(coarsen(graph, 40))
    pure = [ops for ops in groups if len({graph.op_names[op][0] for op in ops}) == 1]
    assert len(pure) >= 0.9 * len(groups)


def test_heavy_ops_are_alone() -> None:
    ops = [{"name": f"op{op}", "flops": 1e12 if op % 10 == 5 else 1e6} for op in range(50)]
    graph = build_graph("chain", "", ops, [(op, 1.0, [op + 1]) for op in range(49)])
    assert [ops for ops in members(coarsen(graph, 11)) if len(ops) == 1] == [{op} for op in range(5, 50, 10)]


def test_parameters_and_updates_follow_their_group_as_ops_of_their_own() -> None:
    graph = load_family("gpt")[-1]
    found = coarsen(graph, 16)
    assert 8 <= len(found.coarse.units) <= 16
    kinds = {
        (found.coarse.op_types[part], found.coarse.phases[part]): 0 for part in range(found.coarse.n_ops)
    }
    assert ("parameter", "forward") in kinds
    assert ("optim.adam", "optimizer") in kinds
    for part, ops in enumerate(members(found)):
        if found.coarse.op_types[part] == "optim.adam":
            assert {graph.op_types[op] for op in ops} == {"optim.adam"}


def test_layers_of_module_paths() -> None:
    assert layer_of("decoder.cells.0.ih", False) == "decoder.cells.0"
    assert layer_of("encoder.backward_cell", True) == "encoder.backward_cell"
    assert layer_of("encoder.backward_cell.ih", False) == "encoder.backward_cell"
    assert layer_of("softmax", False) == "softmax"
    assert layer_of("", False) == ""


def test_a_large_graph_takes_little_time() -> None:
    graph = layered_graph(20_000)
    began = time.process_time()
    assert len(coarsen(graph).coarse.units) <= 512
    assert time.process_time() - began < 2.0
