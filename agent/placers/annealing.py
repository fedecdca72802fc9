"""Simulated annealing and local search over decision units."""

from __future__ import annotations

import numpy as np

from agent.placers.annealing_kernels import OVERFLOW_COST, Walker, anneal
from agent.placers.base import BATCH, SearchState, placer
from agent.placers.list_scheduling import heft, m_etf
from agent.placers.single import single
from agent.placers.units import units_of
from envs.simulator.kernels import new_pair

FIRST_TEMPERATURE, COOL_TEMPERATURE, LAST_TEMPERATURE = 1e-3, 3e-4, 1e-5
"""In units of a step on the fastest single device: from nothing, from a good placement, at the end."""


@placer("annealing", uses_rng=True)
def annealing(search: SearchState, rng: np.random.Generator) -> None:
    """Simulated annealing from the best single device, cooled geometrically over the whole budget.

    A move takes one decision unit, it and its neighbours, or a stretch of the program or of the layers to
    another device, or swaps two units. Memory over the limit costs energy.
    """
    single(search, rng)
    walk(search, rng, FIRST_TEMPERATURE, LAST_TEMPERATURE)


@placer("local-search", uses_rng=True)
def local_search(search: SearchState, rng: np.random.Generator) -> None:
    """Descent with annealing's moves from the best of the single devices and list schedules."""
    for start in (single, heft, m_etf):
        if search.left:
            start(search, rng)
    walk(search, rng, 0.0, 0.0)


def walk(search: SearchState, rng: np.random.Generator, first: float, last: float) -> None:
    """Walk from the best placement of a search until its budget ends, cooling from `first` to `last`."""
    problem = search.problem
    if problem.n_devices == 1 or search.best is None:
        return
    units, walker = units_of(problem), _walker(search)
    track_memory = not problem.always_fits
    began = search.progress
    while left := min(search.left, BATCH):
        cooled = (search.progress - began) / (1.0 - began)
        temperature = first * (last / first) ** cooled if first else 0.0
        anneal(problem.arrays, units, walker, left, temperature, problem.scale_s, track_memory, rng)
        search.evaluations += left
        search.keep(walker.best, float(walker.best_score[1]), float(walker.best_score[0]))


def anneal_from_best(search: SearchState, rng: np.random.Generator) -> None:
    """Walk from the best placement of a search until its budget ends, too cool to lose what is there."""
    walk(search, rng, COOL_TEMPERATURE, LAST_TEMPERATURE)


def _walker(search: SearchState) -> Walker:
    problem, best = search.problem, search.best
    assert best is not None
    n_units = len(problem.graph.units)
    over_bytes, total_s = search.best_score
    energy = total_s / problem.scale_s + OVERFLOW_COST * over_bytes / problem.cluster.memory_bytes.sum()
    seconds = problem.op_seconds[np.arange(len(best)), best]
    return Walker(
        device_of=best.copy(),
        energy=np.array([energy]),
        best=best.copy(),
        best_score=np.array([over_bytes, total_s]),
        moved=np.empty(n_units, dtype=np.int64),
        back=np.empty(n_units, dtype=np.int64),
        pair=new_pair(problem.graph.n_ops, problem.graph.n_tensors, problem.n_devices),
        work_s=np.bincount(best, seconds, minlength=problem.n_devices).astype(np.float64),
        peak=np.empty(problem.n_devices),
    )
