"""Placers that do what `refine` does, with moves in neighbourhoods that change from round to round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from agent.experiments.neighbourhoods.moves import anneal_within, focus_on, new_focus
from agent.experiments.neighbourhoods.networks import Net, empty_net
from agent.experiments.neighbourhoods.scan import new_scan, scan_units
from agent.experiments.neighbourhoods.sets import N_INPUTS, draw_sets
from agent.experiments.neighbourhoods.sieve import new_sieve
from agent.placers.base import Leader, SearchState, Strategy
from agent.placers.scores import OVER_BYTES, TOTAL_S
from agent.placers.search.annealing import (
    COOL_MOVES,
    COOL_TEMPERATURE,
    LAST_TEMPERATURE,
    MODULE_DECAY,
    MODULE_SHARE,
    PLANNING,
    RACE_SHARE,
    Layout,
    _new_chain,
    layout_of,
    run_chain,
)
from agent.placers.search.refine import score_starts
from envs.problem import Problem
from graphs.system.array_types import FloatArray, IntArray

ROUND = 256
"""Proposals that are simulated in one neighbourhood."""
LEAST_UNITS, MOST_UNITS = 10, 800
"""Sizes of neighbourhoods; they are drawn log-uniformly."""
MOST_SETS = 64


class Walk:
    """A chain, its neighbourhood, and what choosers know."""

    def __init__(self, problem: Problem, layout: Layout, start: Leader, rng: np.random.Generator) -> None:
        """Begins at a placement, with all units in the neighbourhood.

        Args:
            layout: of the problem.
        """
        n_units = len(problem.graph.units)
        self.problem, self.layout, self.rng = problem, layout, rng
        self.chain = _new_chain(problem, start)
        self.scan = new_scan(n_units, problem.graph.n_ops, problem.n_devices)
        self.focus, self.net, self.sieve = new_focus(n_units), empty_net(1), new_sieve()
        self.fresh = True
        self.sets = np.zeros((MOST_SETS, min(MOST_UNITS, n_units)), dtype=np.int64)
        self.n_units = np.zeros(MOST_SETS, dtype=np.int64)
        self.take(layout.segments.sequences[0])
        self.run(0, 0.0, 0.0)

    def draw(self, kinds: IntArray, progress: float, temperature: float) -> FloatArray:
        """Draws neighbourhoods of some kinds; returns their features."""
        low, high = np.log(LEAST_UNITS), np.log(MOST_UNITS)
        sizes = np.exp(self.rng.uniform(low, high, len(kinds))).astype(np.int64)
        return self.draw_sized(kinds, sizes, progress, temperature)

    def draw_sized(self, kinds: IntArray, sizes: IntArray, progress: float, temperature: float) -> FloatArray:
        """Draws neighbourhoods of some kinds and sizes; returns their features."""
        x = np.zeros((len(kinds), N_INPUTS))
        scan_units(self.problem.arrays, *self.layout, self.chain, self.scan)
        draw_sets(
            *(*self.layout, self.chain, self.scan, kinds, sizes, progress, temperature),
            *(self.sets, self.n_units, x, self.rng),
        )
        return x

    def take_drawn(self, index: int) -> None:
        """Makes one of the sets that were drawn the neighbourhood."""
        self.take(self.sets[index, : self.n_units[index]])

    def take(self, chosen: IntArray) -> None:
        """Makes units the neighbourhood."""
        focus_on(self.layout.segments, chosen, self.focus)

    def run(self, n: int, temperature: float, module_share: float) -> None:
        """Simulates some proposals."""
        problem = self.problem
        anneal_within(
            *(problem.arrays, *self.layout, self.focus, self.chain, self.scan, self.net, self.sieve, n),
            *(temperature, module_share, problem.scale_s, not problem.always_fits, self.fresh, self.rng),
        )
        self.fresh = False


class Chooser(Protocol):
    """Chooses the neighbourhood of each round."""

    def choose(self, walk: Walk, progress: float, temperature: float) -> None:
        """Makes the walk take a neighbourhood."""

    def told(self, gain: float, seconds: float) -> None:
        """Learns what the round gained, and how long it took."""


def refine_with(choose: Callable[[], Chooser], net: Net | None = None, share: float = 1.0) -> Strategy:
    """Makes a strategy that is `refine` but for its last chain.

    Args:
        choose: makes a chooser for a run.
        net: scores proposals, of which the best share is simulated.
    """

    def strategy(search: SearchState, rng: np.random.Generator) -> None:
        score_starts(search, rng)
        if not search.has_time(PLANNING):
            return
        layout, began, evaluations = layout_of(search.problem), search.progress, search.evaluations
        leaders, temperature = search.leaders, COOL_TEMPERATURE
        if len(leaders) > 1:
            for number, leader in enumerate(leaders, start=1):
                until = began + (1.0 - began) * RACE_SHARE * number / len(leaders)
                run_chain(search, rng, 0.0, 0.0, layout=layout, start=leader, until=until)
            n_moves = (search.evaluations - evaluations) / RACE_SHARE
            if n_moves < COOL_MOVES * len(search.problem.graph.units):
                temperature = 0.0
        if search.left:
            walk = Walk(search.problem, layout, search.leaders[0], rng)
            if net is not None:
                walk.net, walk.sieve = net, new_sieve(share)
            run_rounds(search, walk, choose(), temperature)

    return strategy


def run_rounds(search: SearchState, walk: Walk, chooser: Chooser, first: float) -> None:
    """Runs a chain until the budget ends, each round in another neighbourhood.

    Args:
        first: temperature at first, in steps on the fastest single device; 0 to descend.
    """
    chain, began, move_s = walk.chain, search.progress, search.simulation_s
    while search.left:
        n = int(min(ROUND, max(search.seconds_left / max(move_s, 1e-7), 1)))
        cooled = (search.progress - began) / (1.0 - began)
        temperature = first * (LAST_TEMPERATURE / first) ** cooled if first else 0.0
        before_s, before = search.elapsed_s, float(chain.energy[0])
        chooser.choose(walk, cooled, temperature)
        walk.run(n, temperature, MODULE_SHARE * (1.0 - cooled) ** MODULE_DECAY)
        search.spend(n)
        took_s = search.elapsed_s - before_s
        chooser.told(before - float(chain.energy[0]), took_s)
        move_s = took_s / n
        score = float(chain.best_score[OVER_BYTES]), float(chain.best_score[TOTAL_S])
        if score < search.best_score:
            search.keep(chain.best, score[TOTAL_S], score[OVER_BYTES])
