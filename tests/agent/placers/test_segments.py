"""Units that annealing moves together: sequences of units, and modules in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.placers.base import Budget, SearchState
from agent.placers.heuristics.single import single_devices
from agent.placers.search.annealing import Segments, _new_chain, segments_of
from agent.placers.search.annealing_kernels import anneal
from agent.placers.search.annealing_moves import AnnealingChain
from agent.placers.units import units_of
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.granularity import module_paths
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from tests.agent.placement_cases import random_problem


def module_sets(graph: OpGraph) -> set[frozenset[int]]:
    """Units of each module and of those in it; a unit is where its first computing op is."""
    names = module_paths(graph)
    inside: dict[str, set[int]] = {}
    for unit in range(len(graph.units)):
        ops = sorted(graph.units.row(unit), key=lambda op: (not graph.is_compute[op], op))
        parts = names[ops[0]].split(".") if names[ops[0]] else []
        for depth in range(len(parts)):
            inside.setdefault(".".join(parts[: depth + 1]), set()).add(unit)
    return {frozenset(units) for units in inside.values() if 1 < len(units) < len(graph.units)}


@pytest.mark.parametrize("family", ["nmt", "gpt", "inception"])
def test_the_units_of_a_module_lie_side_by_side(family: str) -> None:
    graph = load_family(family)[0]
    segments = segments_of(graph)
    used = np.unique(segments.module_item)
    found = {
        frozenset(segments.sequences[-1, segments.module_first[module] : segments.module_end[module]])
        for module in used
    }
    assert found == module_sets(graph)
    assert len(found) > 3


def test_each_sequence_holds_all_units_once() -> None:
    segments = segments_of(load_family("moe")[0])
    n_units = segments.sequences.shape[1]
    every = np.arange(n_units)
    assert (np.sort(segments.sequences, axis=1) == every).all()
    assert (np.take_along_axis(segments.positions, segments.sequences, axis=1) == every).all()


def test_a_graph_without_module_paths_has_no_modules() -> None:
    segments = segments_of(random_problem(0).graph)
    assert len(segments.module_item) == 0
    assert segments.module_ptr.max() == 0


def moved_units(
    problem: Problem, chain: AnnealingChain, segments: Segments, rng: np.random.Generator
) -> IntArray:
    """Makes one move of a module, which is accepted whatever it costs, and takes it back."""
    before = chain.device_of.copy()
    anneal(*(problem.arrays, units_of(problem), segments, chain, 1), *(1e9, 1.0, problem.scale_s, False, rng))
    moved = chain.device_of != before
    assert len(np.unique(chain.device_of[moved])) == 1
    units = np.unique(problem.graph.unit_of[moved])
    assert (np.isin(problem.graph.unit_of, units) == moved).all()
    chain.device_of[:] = before
    chain.work_s[:] = np.bincount(before, problem.op_seconds[:, before[0]], problem.n_devices)
    return units


def test_a_move_of_a_module_takes_all_of_it_to_one_device() -> None:
    problem, rng = Problem(load_family("nmt")[0], get_cluster("4xv100")), np.random.default_rng(0)
    search = SearchState(problem, Budget(10))
    search.score(single_devices(problem)[:1])
    chain, segments = _new_chain(problem, search.leaders[0]), segments_of(problem.graph)
    modules = module_sets(problem.graph)
    moves = [frozenset(moved_units(problem, chain, segments, rng)) for _ in range(30)]
    assert all(len(units) == 1 or units in modules for units in moves)
    assert len(set(moves)) > 5
    none = segments_of(replace(problem.graph, modules=("",) * problem.graph.n_ops))
    assert len(moved_units(problem, chain, none, rng)) == 1
