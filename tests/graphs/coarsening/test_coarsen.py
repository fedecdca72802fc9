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


def members(coarsening: Coarsening) -> list[set[int]]:
    return [set(np.flatnonzero(coarsening.part == part).tolist()) for part in range(coarsening.coarse.n_ops)]


@given(graphs(), st.integers(1, 20))
def test_at_most_so_many_units_keep_colocation_and_the_sums_of_costs(graph: OpGraph, n_units: int) -> None:
    coarsening = coarsen(graph, n_units)
    coarse = coarsening.coarse
    assert len(coarse.units) <= n_units or coarse is graph
    assert len(coarse.units) <= max(n_units, len(graph.units))
    coarse_unit = coarse.unit_of[coarsening.part]
    for unit in range(len(graph.units)):
        assert len(set(coarse_unit[graph.units.row(unit)].tolist())) == 1
    for label in ("flops", "bytes_moved", "resident_bytes"):
        assert getattr(coarse, label).sum() == pytest.approx(getattr(graph, label).sum())
        assert getattr(coarse, label) == pytest.approx(coarsening.total(getattr(graph, label)))
    for kind, seconds in graph.seconds.items():
        assert coarse.seconds[kind] == pytest.approx(coarsening.total(seconds))


@given(graphs(), st.integers(1, 20))
def test_coarse_ops_form_no_cycle_and_tensors_keep_their_ends(graph: OpGraph, n_units: int) -> None:
    coarsening = coarsen(graph, n_units)
    # An OpGraph is in program order by its own check, so having been made the coarse graph has no cycle.
    sent = {
        (coarsening.part[producer], coarsening.part[reader]): 0.0
        for producer, reader in graph.edges.tolist()
        if coarsening.part[producer] != coarsening.part[reader]
    }
    for tensor, producer in enumerate(graph.tensor_producer.tolist()):
        for reader in {coarsening.part[reader] for reader in graph.consumers.row(tensor).tolist()}:
            if reader != coarsening.part[producer]:
                sent[coarsening.part[producer], reader] += graph.tensor_bytes[tensor]
    kept = dict.fromkeys(sent, 0.0)
    for tensor, producer in enumerate(coarsening.coarse.tensor_producer.tolist()):
        for reader in coarsening.coarse.consumers.row(tensor).tolist():
            kept[producer, reader] += coarsening.coarse.tensor_bytes[tensor]
    assert kept == pytest.approx(sent)


@given(graphs(), st.integers(1, 20))
def test_coarse_ops_mix_neither_phases_nor_sources_with_compute_ops(graph: OpGraph, n_units: int) -> None:
    coarsening = coarsen(graph, n_units)
    for part, ops in enumerate(members(coarsening)):
        assert {bool(graph.is_source[op]) for op in ops} == {bool(coarsening.coarse.is_source[part])}
        if not coarsening.coarse.is_source[part]:
            assert {graph.phases[op] for op in ops} == {coarsening.coarse.phases[part]}


@given(graphs(), st.integers(1, 20), st.integers(1, 4))
def test_a_placement_of_the_units_is_one_of_the_ops(graph: OpGraph, n_units: int, n_devices: int) -> None:
    coarsening = coarsen(graph, n_units)
    devices = np.random.default_rng(0).integers(n_devices, size=len(coarsening.coarse.units))
    expanded = coarsening.expand(devices[coarsening.coarse.unit_of])
    assert all(len(set(expanded[graph.units.row(unit)])) == 1 for unit in range(len(graph.units)))
    rows = np.stack([devices[coarsening.coarse.unit_of]] * 2)
    assert (coarsening.expand(rows) == expanded).all()


@given(graphs(), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_storage_of_tensors_and_colocation_makes_no_difference(
    graph: OpGraph, n_units: int, random: object
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
    assert coarsen(graph, n_units).part.tolist() == coarsen(stored_otherwise, n_units).part.tolist()


def test_a_graph_with_few_units_is_left_as_it_is() -> None:
    graph = layered_graph(100)
    coarsening = coarsen(graph, 100)
    assert coarsening.coarse is graph
    assert coarsening.part.tolist() == list(range(100))
    assert coarsen(graph, 99).coarse.n_ops < 100


def test_less_than_one_unit_is_refused() -> None:
    with pytest.raises(
        GraphError, match=r"graph 'layered-10': cannot have 0 placement units; ask for at least 1"
    ):
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
    # Fewer units than cells: segments of whole cells.
    assert {len(ops) % 5 for ops in members(coarsen(graph, 6))} == {0}


def test_critical_ops_and_ops_with_slack_are_in_different_units() -> None:
    """A chain whose every op also feeds a side op, which only the last op reads."""
    length = 200
    ops = [{"name": f"{kind}{at}", "flops": 1e9} for at in range(length) for kind in ("chain", "side")]
    chain = [(2 * at, 1.0, [2 * at + 1, *([2 * at + 2] if at + 1 < length else [])]) for at in range(length)]
    sides = [(2 * at + 1, 1.0, [2 * length]) for at in range(length)]
    graph = build_graph("sides", "", [*ops, {"name": "last", "flops": 1e9}], [*chain, *sides])
    units = members(coarsen(graph, 40))
    pure = [ops for ops in units if len({graph.op_names[op][0] for op in ops}) == 1]
    assert len(pure) >= 0.9 * len(units)


def test_heavy_ops_are_alone() -> None:
    ops = [{"name": f"op{op}", "flops": 1e12 if op % 10 == 5 else 1e6} for op in range(50)]
    graph = build_graph("chain", "", ops, [(op, 1.0, [op + 1]) for op in range(49)])
    assert [ops for ops in members(coarsen(graph, 11)) if len(ops) == 1] == [{op} for op in range(5, 50, 10)]


def test_parameters_and_updates_follow_their_unit_as_ops_of_their_own() -> None:
    graph = load_family("gpt")[-1]
    coarsening = coarsen(graph, 16)
    assert 8 <= len(coarsening.coarse.units) <= 16
    kinds = {
        (coarsening.coarse.op_types[part], coarsening.coarse.phases[part]): 0
        for part in range(coarsening.coarse.n_ops)
    }
    assert ("parameter", "forward") in kinds
    assert ("optim.adam", "optimizer") in kinds
    for part, ops in enumerate(members(coarsening)):
        if coarsening.coarse.op_types[part] == "optim.adam":
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
