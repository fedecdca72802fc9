"""Simulated annealing and local search over placement units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agent.placers.base import Leader, SearchState, Strategy, placer
from agent.placers.heuristics.list_scheduling import heft, m_etf
from agent.placers.heuristics.single import single
from agent.placers.search.annealing_moves import OVERFLOW_COST, AnnealingChain, anneal
from agent.placers.units import Units, units_by_layer, units_by_program, units_of
from envs.objective import OVER_BYTES, TOTAL_S
from envs.problem import Problem
from envs.simulator.resume import new_pair
from graphs.granularity import module_paths
from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.interrupts import interrupts_put_off

FIRST_TEMPERATURE, COOL_TEMPERATURE, LAST_TEMPERATURE = 1e-3, 3e-4, 1e-5
"""Temperatures in steps on the fastest device: at first, at first from a good placement, at the end."""
MODULE_SHARE, MODULE_DECAY = 0.5, 3
"""Share of the moves that take a module, at first, and the power by which it falls to 0 with the budget that
is left. Tuned on a sixth of the benchmark graphs."""
RACE_SHARE = 0.2
"""Share of the budget that is left, for descents from several starts. Tuned likewise."""
COOL_MOVES = 200
"""Moves for each unit from which on annealing finds more than a descent does. Tuned likewise, and on large
graphs that no test uses."""
PLANNING = 30
"""Simulations of a placement that take about as long as a list scheduler, or as laying out a chain."""
STARTS: tuple[Strategy, ...] = (single, heft, m_etf)
"""Heuristics that local search begins with: the quickest of the good ones."""


@placer("annealing", uses_rng=True)
def annealing(search: SearchState, rng: np.random.Generator) -> None:
    """Simulated annealing from the best single device, cooled geometrically over the whole budget.

    A move takes one placement unit, a unit and its neighbours, a module, or a segment of the program order,
    of the layers or of the modules to another device, or swaps two units. Memory over the limit costs energy.
    """
    single(search, rng)
    run_chain(search, rng, FIRST_TEMPERATURE, LAST_TEMPERATURE)


@placer("local-search", uses_rng=True)
def local_search(search: SearchState, rng: np.random.Generator) -> None:
    """Descends with annealing's moves from the best of the single devices and list schedules."""
    for start in STARTS:
        if search.best is None or search.has_time(PLANNING):
            start(search, rng)
    if search.has_time(PLANNING):
        run_chain(search, rng, 0.0, 0.0)


class Layout(NamedTuple):
    """The placement units of a problem, and those that annealing moves together."""

    units: Units
    segments: Segments


def layout_of(problem: Problem) -> Layout:
    """Lays out what chains on a problem move."""
    return Layout(units_of(problem), segments_of(problem.graph))


def run_chain(
    search: SearchState,
    rng: np.random.Generator,
    first: float,
    last: float,
    *,
    layout: Layout | None = None,
    start: Leader | None = None,
    until: float = 1.0,
) -> Leader | None:
    """Runs a chain until a share of the budget is spent.

    Args:
        first, last: temperatures, in steps on the fastest single device; it cools geometrically, and with
            `first` 0 it only descends.
        layout: layout of the problem, if it was made before.
        start: first placement; by default the best of the search.
        until: share of the whole budget, 0 to 1.

    Returns:
        The best placement of the chain; None without a start.
    """
    problem, start = search.problem, start or next(iter(search.leaders), None)
    if problem.n_devices == 1 or start is None:
        return start
    layout, chain = layout or layout_of(problem), _new_chain(problem, start)
    track_memory = not problem.always_fits
    began, move_s = search.progress, search.simulation_s
    while (n_moves := search.batch(move_s)) and search.progress < until:
        cooled = (search.progress - began) / (until - began)
        temperature = first * (last / first) ** cooled if first else 0.0
        module_share = MODULE_SHARE * (1.0 - cooled) ** MODULE_DECAY
        before_s = search.elapsed_s
        # numba calls Python code to take a generator apart, and crashes if that is interrupted.
        with interrupts_put_off():
            anneal(
                *(problem.arrays, *layout, chain, n_moves),
                *(temperature, module_share, problem.scale_s, track_memory, rng),
            )
        search.evaluations += n_moves
        move_s = (search.elapsed_s - before_s) / n_moves
        search.keep(chain.best, float(chain.best_score[TOTAL_S]), float(chain.best_score[OVER_BYTES]))
    return Leader((float(chain.best_score[OVER_BYTES]), float(chain.best_score[TOTAL_S])), chain.best)


def anneal_from_leaders(search: SearchState, rng: np.random.Generator) -> None:
    """Anneals from what a short descent from each of the leaders leads to, cool enough not to lose it.

    On large graphs the best start is often not the one that leads furthest. Where the seconds of the budget
    end after few moves, by what the descents show, it goes on descending instead of annealing.
    """
    if not search.has_time(PLANNING):
        return
    leaders, began, layout = search.leaders, search.progress, layout_of(search.problem)
    evaluations, temperature = search.evaluations, COOL_TEMPERATURE
    if len(leaders) > 1:
        for number, leader in enumerate(leaders, start=1):
            until = began + (1.0 - began) * RACE_SHARE * number / len(leaders)
            run_chain(search, rng, 0.0, 0.0, layout=layout, start=leader, until=until)
        n_moves = (search.evaluations - evaluations) / RACE_SHARE
        if search.budget.seconds is not None and n_moves < COOL_MOVES * len(search.problem.graph.units):
            temperature = 0.0
    run_chain(search, rng, temperature, LAST_TEMPERATURE, layout=layout)


def _new_chain(problem: Problem, start: Leader) -> AnnealingChain:
    n_units, device_of = len(problem.graph.units), start.device_of
    over_bytes, total_s = start.score
    excess = over_bytes / problem.cluster.memory_bytes.sum()
    energy = total_s / problem.scale_s + OVERFLOW_COST * excess
    seconds = problem.op_seconds[np.arange(len(device_of)), device_of]
    return AnnealingChain(
        device_of=device_of.copy(),
        energy=np.array([energy, excess, OVERFLOW_COST]),
        best=device_of.copy(),
        best_score=np.array([over_bytes, total_s]),
        moved=np.empty(n_units, dtype=np.int64),
        back=np.empty(n_units, dtype=np.int64),
        pair=new_pair(problem.graph.n_ops, problem.graph.n_tensors, problem.n_devices),
        work_s=np.bincount(device_of, seconds, minlength=problem.n_devices).astype(np.float64),
        peak=np.empty(problem.n_devices),
    )


class Segments(NamedTuple):
    """Units that move together, as the kernels read them; arrays are int64.

    In the last sequence the units of a module, with those of the modules in it, lie side by side. So do all
    calls of a module, forward and backward: those of a recurrent layer run all over the step.
    """

    sequences: IntArray  # (n_sequences, n_units)
    positions: IntArray  # (n_sequences, n_units) position of each unit in a sequence
    module_ptr: IntArray  # (n_units + 1,) modules that a unit is in, outermost first
    module_item: IntArray
    module_first: IntArray  # (n_modules,) position of its first unit in the last sequence
    module_end: IntArray  # (n_modules,) and that after its last


def segments_of(graph: OpGraph) -> Segments:
    """Lays out the units in program order, by layers and by modules.

    A module counts if it holds several units, but not all. Graphs without module paths have none.
    """
    paths = _module_paths(graph)
    rank = {path: index for index, path in enumerate(sorted(set(paths)))}
    by_path = np.argsort(np.array([rank[path] for path in paths], dtype=np.int64), kind="stable")
    sequences = np.stack([units_by_program(graph), units_by_layer(graph), by_path])
    positions = np.argsort(sequences, axis=1)
    modules, first, end = _modules(paths, positions[-1])
    return Segments(sequences, positions, modules.ptr, modules.items, first, end)


def _module_paths(graph: OpGraph) -> list[tuple[int, ...]]:
    """Numbers of the modules that each unit's first computing op is in, outermost first.

    Modules count up in program order, so paths sort in it.
    """
    names = module_paths(graph)
    compute_first = np.lexsort([np.arange(graph.n_ops), ~graph.is_compute])
    leader = np.empty(len(graph.units), dtype=np.int64)
    leader[graph.unit_of[compute_first[::-1]]] = compute_first[::-1]
    number: dict[str, int] = {}
    numbered = {path: _numbered(path, number) for path in dict.fromkeys(names[op] for op in leader)}
    return [numbered[names[op]] for op in leader]


def _numbered(path: str, number: dict[str, int]) -> tuple[int, ...]:
    parts = path.split(".") if path else []
    outer = (".".join(parts[: depth + 1]) for depth in range(len(parts)))
    return tuple(number.setdefault(module, len(number)) for module in outer)


def _modules(paths: Sequence[tuple[int, ...]], position: IntArray) -> tuple[Csr, IntArray, IntArray]:
    """Finds the modules that each unit is in, and where each begins and ends in the sequence by modules."""
    n_units = len(paths)
    units = np.repeat(np.arange(n_units), [len(path) for path in paths])
    modules = np.array([module for path in paths for module in path], dtype=np.int64)
    n_modules = modules.max(initial=-1) + 1
    first, end = np.full(n_modules, n_units), np.zeros(n_modules, dtype=np.int64)
    np.minimum.at(first, modules, position[units])
    np.maximum.at(end, modules, position[units] + 1)
    counts = (end - first > 1) & (end - first < n_units)
    return Csr.from_pairs(units[counts[modules]], modules[counts[modules]], n_units), first, end
