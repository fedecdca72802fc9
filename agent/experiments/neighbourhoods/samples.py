"""Samples to learn from: what neighbourhoods and proposals gain from the states of short searches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from agent.experiments.neighbourhoods.choosers import AllUnits, Fixed
from agent.experiments.neighbourhoods.search import ROUND, Chooser, Walk
from agent.experiments.neighbourhoods.sets import KINDS
from agent.experiments.neighbourhoods.sieve import new_sieve
from agent.placers.base import Budget, SearchState
from agent.placers.search.annealing import COOL_TEMPERATURE, LAST_TEMPERATURE, layout_of
from agent.placers.search.refine import score_starts
from envs.problem import Problem
from graphs.system.array_types import FloatArray

N_STATES, N_SETS, N_MOVES = 10, 48, 768
SECONDS, LARGE_SECONDS, LARGE = 0.7, 2.5, 2_000
"""Processor seconds of a search, and of one on graphs of at least `LARGE` ops."""
SHARE = 0.2
"""Share of the moves that take a module."""
KEPT = 0.15
"""Share of the proposals without a gain that are kept, with a weight."""


class SetSamples(NamedTuple):
    """Neighbourhoods from some states."""

    x: FloatArray  # (n_states, N_SETS, n_inputs)
    rate: FloatArray  # (n_states, N_SETS) energy gained a processor second


def states(problem: Problem, chooser: Chooser, *, hot: bool, rng: np.random.Generator) -> Iterator[Walk]:
    """Yields a walk at growing times of a search, which goes on when asked for the next one."""
    seconds = SECONDS if problem.graph.n_ops < LARGE else LARGE_SECONDS
    search = SearchState(problem, Budget(None, seconds))
    score_starts(search, rng)
    walk = Walk(problem, layout_of(problem), search.leaders[0], rng)
    for state in range(N_STATES):
        until = time.process_time() + seconds * 2 * (0.3 + state) / N_STATES**2
        cooled = (LAST_TEMPERATURE / COOL_TEMPERATURE) ** (state / N_STATES)
        temperature = COOL_TEMPERATURE * cooled if hot else 0.0
        while time.process_time() < until:
            chooser.choose(walk, 0.0, temperature)
            walk.run(ROUND, temperature, SHARE)
        yield walk


def set_samples(problem: Problem, chooser: Chooser, *, hot: bool, rng: np.random.Generator) -> SetSamples:
    """Descends in many neighbourhoods from each state of a search."""
    found = []
    for state, walk in enumerate(states(problem, chooser, hot=hot, rng=rng)):
        x = walk.draw(rng.integers(len(KINDS), size=N_SETS), state / N_STATES, 0.0)
        chain, scan = walk.chain, walk.scan
        kept = [
            (array, array.copy())
            for array in (
                *(chain.device_of, chain.work_s, chain.energy, chain.best, chain.best_score),
                *(scan.tried, scan.won),
            )
        ]
        rate = np.zeros(N_SETS)
        for index in range(N_SETS):
            walk.take_drawn(index)
            walk.run(0, 0.0, 0.0)
            before, began = float(chain.energy[0]), time.process_time()
            walk.run(ROUND, 0.0, SHARE)
            rate[index] = (before - float(chain.energy[0])) / (time.process_time() - began)
            for array, value in kept:
                array[:] = value
            walk.fresh = True
        walk.run(0, 0.0, 0.0)
        found.append((x, rate))
    return SetSamples(np.stack([x for x, _ in found]), np.stack([rate for _, rate in found]))


def move_samples(
    problem: Problem, *, hot: bool, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Logs proposals at temperature 0 from each state of a search: features, gains and weights."""
    xs, gains = [], []
    for state, walk in enumerate(states(problem, Fixed(), hot=hot, rng=rng)):
        for part in range(4):
            if part % 2:
                walk.take(walk.layout.segments.sequences[0])
            (AllUnits(scans=True) if part % 2 else Fixed()).choose(walk, 0.0, 0.0)
            walk.sieve = new_sieve(n_log=N_MOVES)
            walk.run(N_MOVES, 0.0, SHARE * (1 - state / N_STATES))
            is_logged = walk.sieve.log_gain >= 0
            xs.append(walk.sieve.log_x[is_logged])
            gains.append(walk.sieve.log_gain[is_logged])
        walk.sieve = new_sieve()
    x, gain = np.concatenate(xs), np.concatenate(gains)
    is_kept = (gain > 0) | (rng.random(len(gain)) < KEPT)
    weight = np.where(gain > 0, 1.0, 1.0 / KEPT) / max((gain > 0).sum(), 10)
    return x[is_kept], gain[is_kept], weight[is_kept]
