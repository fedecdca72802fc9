"""Proves an optimal placement: it tries all placements, or a solver rules out the others.

Where there are at most `MAX_PLACEMENTS`, all are simulated. Elsewhere CP-SAT (OR-Tools) minimizes
a relaxation of the step: ops wait for their inputs and for their device, in program order where the schedule
has one, and transfers take their time, but links, the host and copies that slow ops are free, and memory
counts resident bytes alone. No op starts earlier, or has less after it, than in the lower bound
(`heads_and_tails`). So the relaxed optimum bounds every placement. Each solution is simulated; where the
relaxation was too kind, its placement is forbidden and the next one sought, until no relaxed step is shorter
than the best simulated one.

Source: logic-based Benders decomposition with no-good cuts, Hooker and Ottosson 2003.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.placers.base import PlacerError, SearchState, placer
from agent.placers.exact.relaxation import HORIZON_STEPS, TICKS, Relaxation, RelaxationError
from agent.placers.search.annealing import anneal_from_leaders
from agent.placers.search.refine import refine
from envs.objective import TOTAL_S
from envs.problem import Problem
from graphs.system.array_types import IntArray

SECONDS = 10.0
"""Time limit where the budget has none."""
MAX_OPS = 400
"""Computing ops of the largest graph that is modelled: there is a constraint for many of the pairs."""
BUILD_SHARE = 0.5
"""Share of the seconds that are left, that the model may take to be made; else nothing is proven."""
START_EVALUATIONS = 2_000
"""Evaluations of `refine`, which finds the placement to begin with."""
MAX_PLACEMENTS = 2**20
AT_A_TIME = 1024


@dataclass(frozen=True)
class Proof:
    """The proof of an optimum, as far as there is one.

    Attributes:
        bound_s: no feasible placement has a shorter step.
        is_optimal: the best placement that was simulated is one of the shortest.
    """

    bound_s: float
    is_optimal: bool


@placer("exact", stands_alone=True, needs="ortools")
def exact(search: SearchState, rng: np.random.Generator) -> None:
    """Proves a placement optimal, or keeps the best until time is up; begins with what `refine` finds.

    It draws the same whatever the seed. A graph of more than `MAX_OPS` ops is refined alone where its
    placements are too many to be tried in time; nothing is proven then.
    """
    rng, is_small = np.random.default_rng(0), can_enumerate(search)
    can_model = search.problem.graph.is_compute.sum() <= MAX_OPS
    if not is_small and not can_model:
        refine(search, rng)
        return
    search.run_alone(refine, rng, within=START_EVALUATIONS)
    proof = try_all(search) if is_small else None
    if proof is None and can_model:
        proof = solve(search)
    if proof is not None:
        search.lower_bound_s = proof.bound_s
    if proof is None or not proof.is_optimal:
        anneal_from_leaders(search, rng)


def try_all(search: SearchState) -> Proof | None:
    """Simulates all placements; None if the seconds that are left will not last."""
    if not enumerate_placements(search):
        return None
    return Proof(search.best_score[TOTAL_S] if search.is_feasible else 0.0, is_optimal=search.is_feasible)


def solve(search: SearchState) -> Proof:
    """Searches for the optimum with the solver; `search` keeps the simulated placements.

    Raises:
        PlacerError: the graph is too large.
    """
    problem = search.problem
    n_ops = int(problem.graph.is_compute.sum())
    if n_ops > MAX_OPS:
        raise PlacerError(
            f"graph '{problem.graph.name}' has {n_ops} ops; at most {MAX_OPS} are modelled: use refine"
        )
    if not n_ops or problem.n_devices == 1 or not search.left:
        return Proof(0.0, is_optimal=False)
    try:
        return _Benders(search).run()
    except RelaxationError:
        return Proof(0.0, is_optimal=False)


class _Benders:
    """The relaxed model of a problem, and the placements that were simulated."""

    def __init__(self, search: SearchState) -> None:
        self.search, self.problem = search, search.problem
        self.tick_s = self.problem.scale_s / TICKS
        seconds, clock = self._seconds_left * BUILD_SHARE, search.budget.clock
        self.relaxed = Relaxation(self.problem, self.tick_s, seconds, clock)

    def run(self) -> Proof:
        """Solves and cuts until the optimum is proven or the budget ends."""
        search, bound_s = self.search, 0.0
        while search.left and self._seconds_left > 0:
            self.relaxed.below(self._ticks_below)
            self.relaxed.hint(search.best)
            outcome = self.relaxed.solve(self._seconds_left, self._simulate)
            if outcome.is_empty:
                # No relaxed step is shorter than the best one, or the longest that was looked at.
                longest_s = HORIZON_STEPS * self.problem.scale_s
                if search.is_feasible and self._best_s <= longest_s:
                    return Proof(self._best_s, is_optimal=True)
                return Proof(longest_s if search.is_feasible else bound_s, is_optimal=False)
            # The bound of a model with cuts holds for the placements that are not cut; those were simulated.
            bound_s = max(bound_s, min(outcome.bound * self.tick_s, self._best_s))
            if not outcome.is_solved:
                break
            self.relaxed.forbid(outcome.device_of)
        return Proof(bound_s, is_optimal=False)

    @property
    def _seconds_left(self) -> float:
        limit = self.search.budget.seconds
        return (SECONDS if limit is None else limit) - self.search.elapsed_s

    @property
    def _best_s(self) -> float:
        return self.search.best_score[TOTAL_S] if self.search.is_feasible else np.inf

    @property
    def _ticks_below(self) -> int | None:
        """Number of ticks from which a relaxed step is not useful."""
        best_s = self._best_s
        return None if best_s == np.inf else int(np.ceil(best_s / self.tick_s * (1 - 1e-9)))

    def _simulate(self, device_of: IntArray) -> None:
        if self.search.left:
            self.search.score(self.relaxed.renamings(device_of))


def n_placements(problem: Problem) -> int:
    """Number of placements that keep colocation."""
    return int(problem.n_devices ** len(problem.graph.units))


def can_enumerate(search: SearchState) -> bool:
    """Says whether the placements are few, and the evaluations that are left suffice for all."""
    most, count = search.budget.evaluations, n_placements(search.problem)
    return count <= MAX_PLACEMENTS and (most is None or count <= most - search.evaluations)


def enumerate_placements(search: SearchState) -> bool:
    """Simulates every placement; returns whether all were.

    Devices that are alike are told apart, as the order in which a tensor is sent to several goes by their
    index. It stops after the first few where the seconds that are left will not suffice.
    """
    problem, count = search.problem, n_placements(search.problem)
    place_value = problem.n_devices ** np.arange(len(problem.graph.units))
    for first in range(0, count, AT_A_TIME):
        began_s = search.elapsed_s
        codes = np.arange(first, min(first + AT_A_TIME, count))
        if len(search.score_units(codes[:, None] // place_value % problem.n_devices)) < len(codes):
            return False
        left = (count - codes[-1] - 1) / AT_A_TIME
        if (search.elapsed_s - began_s) * left > search.seconds_left:
            return False
    return True
