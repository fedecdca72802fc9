"""Lower bound on the step time from what each kind of device can hold and has to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agent.bounds.assignment_rows import AssignmentRow, memory_rows, tightest_rows
from agent.bounds.kept_tensors import Forest, kept_reads, make_forest
from agent.bounds.kind_costs import KindCosts, kind_costs
from agent.bounds.path_kernels import best_assignment
from envs.problem import Problem
from graphs.system.array_types import FloatArray, IntArray

MAX_KINDS = 4
"""Kinds of devices for which the LP is solved."""
MAX_ROUNDS = 6
"""Times that rows are added."""
MAX_COLUMNS = 20
"""Assignments that are made in a round at most."""
MIN_GAIN = 1e-3
"""Share of the step by which a row must be broken, or the bound may grow, to go on."""
EXCESS_STEPS = 1e4
"""Steps on the fastest device that memory beyond the capacity of a kind costs, per capacity."""
NO_EXCESS = 1e-6


def assignment_bound_s(problem: Problem, head: FloatArray, tail: FloatArray) -> float:
    """Lower bound on the step time of every feasible placement, in seconds; counts memory.

    A placement puts each unit on one kind of device. It is feasible only if no kind holds more than all its
    devices have (`memory_rows`). The step takes at least
    - the work of a window of time on each kind, spread over its devices, and the least time around it;
    - the work of an op's ancestors on one kind, the op, and the work of its descendants on another;
    - the ops of a path, one after the other, and the transfers between them from kind to kind.
    Transfers count along a forest of units.

    The least step over all mixtures of assignments that fit in memory is a linear program (LP). It is solved
    by column generation (Dantzig and Wolfe 1960): dynamic programming along the forest finds the best
    assignment at given multipliers. Rows that a mixture breaks are added. The bound does not rely on the
    solver: it is the Lagrangian of the LP at the solver's multipliers, which is a lower bound for all
    multipliers that are not negative (weak duality; Fisher 1981).

    With one kind of device the bound gains nothing: a mixture that is equal on all devices meets every limit.

    Args:
        head, tail: least seconds before the start and after the end of each op, (n_ops,).

    Returns:
        Seconds; 0 where there is one kind, more than `MAX_KINDS`, or not enough memory for any placement.
    """
    costs = kind_costs(problem, head, tail)
    fits = costs.resident[:, None] <= costs.memory
    if not 1 < costs.n_kinds <= MAX_KINDS or not fits.any(axis=1).all():
        return 0.0
    kept = kept_reads(costs)
    forest = make_forest(costs, kept)
    lp = _MixtureLP(costs, forest, fits, memory_rows(costs, forest, kept))
    for _ in range(MAX_ROUNDS):
        found = tightest_rows(costs, forest, lp.share)
        broken = [rows for least_s, rows in found if least_s > lp.step_s * (1 + MIN_GAIN)]
        if not broken:
            break
        lp.rows += [row for rows in broken for row in rows]
        lp.solve()
    return lp.best_s if lp.excess <= NO_EXCESS else 0.0


@dataclass(eq=False)
class _MixtureLP:
    """The LP: assignments of all units to kinds are its columns.

    Attributes:
        fits: whether each unit may be on each kind, bool (n_units, n_kinds).
        limits: rows that must not be above 0.
        rows: rows of seconds; the step takes at least as many.
        columns: kind of each unit, int (n_units,) each.
        best_s: greatest bound so far, seconds.
        best: weights of the rows and prices of the limits that gave it.
        share: of each unit on each kind in the last solution, (n_units, n_kinds).
        step_s: least step of the last solution, seconds.
        excess: by how much the last solution breaks a limit.
    """

    costs: KindCosts
    forest: Forest
    fits: NDArray[np.bool_]
    limits: list[AssignmentRow]
    rows: list[AssignmentRow] = field(default_factory=list)
    columns: list[IntArray] = field(default_factory=list)
    best_s: float = 0.0
    best: tuple[FloatArray, FloatArray] = (np.zeros(0), np.zeros(0))
    step_s: float = 0.0
    excess: float = 0.0

    def __post_init__(self) -> None:
        seconds = np.where(self.fits, self.costs.per_unit(self.costs.seconds), np.inf)
        fastest = seconds.argmin(axis=1)
        alike = [np.where(fits, kind, fastest) for kind, fits in enumerate(self.fits.T)]
        self.columns += [fastest, *alike]
        self.share = _indicator(fastest, self.costs.n_kinds)

    def solve(self) -> None:
        """Adds assignments until the bound is near the least step."""
        self.best = np.append(self.best[0], np.zeros(len(self.rows) - len(self.best[0]))), self.best[1]
        step_s = np.stack([self._sums(self.rows, kind) for kind in self.columns], axis=1)
        broken = np.stack([self._sums(self.limits, kind) for kind in self.columns], axis=1)
        for _ in range(MAX_COLUMNS):
            multipliers = self._mix(step_s, broken)
            if multipliers is None:
                return
            if self.best_s > 0.0:  # Halfway to the best so far: Wentges 1997.
                multipliers = (multipliers[0] + self.best[0]) / 2, (multipliers[1] + self.best[1]) / 2
            bound_s, kind = self.lagrangian(*multipliers)
            if bound_s > self.best_s:
                self.best_s, self.best = bound_s, multipliers
            if self.step_s - self.best_s <= MIN_GAIN * self.best_s:
                return
            self.columns.append(kind)
            step_s = np.column_stack([step_s, self._sums(self.rows, kind)])
            broken = np.column_stack([broken, self._sums(self.limits, kind)])

    def lagrangian(self, weights: FloatArray, prices: FloatArray) -> tuple[float, IntArray]:
        """Computes a lower bound on the step, and the kinds of the units that attain it, int (n_units,).

        Args:
            weights: of the rows, (n_rows,), not negative, with sum 1.
            prices: of the limits, seconds, (n_limits,), not negative.
        """
        cost, total = np.where(self.fits, 0.0, np.inf), 0.0
        along = np.zeros((*cost.shape, self.costs.n_kinds))
        for weight, row in zip([*weights, *prices], [*self.rows, *self.limits], strict=True):
            if weight > 0.0:
                total += weight * row.constant
                cost += weight * row.of_unit
                if row.along is not None:
                    along += weight * row.along
        kind = np.zeros(len(cost), dtype=np.int64)
        total += best_assignment(cost, along, self.forest.parent, kind)
        return float(total), kind

    def _sums(self, rows: Sequence[AssignmentRow], kind: IntArray) -> FloatArray:
        """Sums the rows under an assignment, (n_rows,)."""
        unit, above = np.arange(len(kind)), kind[self.forest.parent]
        sums = np.array([row.constant + row.of_unit[unit, kind].sum() for row in rows])
        for at, row in enumerate(rows):
            if row.along is not None:
                sums[at] += row.along[unit, above, kind].sum()
        return sums

    def _mix(self, step_s: FloatArray, broken: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Finds the mixture of the columns with the least step; sets `share`, `step_s` and `excess`.

        Args:
            step_s: seconds that each row asks for with each column, (n_rows, n_columns).
            broken: what each limit comes to with each column, (n_limits, n_columns).

        Returns:
            Weights of the rows, (n_rows,), and prices of the limits, (n_limits,); None if the solver fails.
        """
        from scipy.optimize import linprog

        n_rows, n_columns = step_s.shape
        unit_s = self.costs.problem.scale_s
        matrix = np.zeros((n_rows + len(broken), n_columns + 2))
        matrix[:n_rows, :-2], matrix[:n_rows, -2] = step_s / unit_s, -1.0
        matrix[n_rows:, :-2], matrix[n_rows:, -1] = broken, -1.0
        solution = linprog(
            np.append(np.zeros(n_columns), [1.0, EXCESS_STEPS]),
            A_ub=matrix,
            b_ub=np.zeros(len(matrix)),
            A_eq=np.append(np.ones(n_columns), [0.0, 0.0])[None],
            b_eq=[1.0],
            method="highs",
        )
        if solution.status != 0:
            return None
        self.step_s, self.excess = float(solution.fun) * unit_s, float(solution.x[-1])
        self.share = np.zeros(self.fits.shape)
        for part, kind in zip(solution.x[:-2], self.columns, strict=True):
            self.share += part * _indicator(kind, self.costs.n_kinds)
        duals = np.maximum(-solution.ineqlin.marginals, 0.0)
        return duals[:n_rows] / max(duals[:n_rows].sum(), NO_EXCESS), duals[n_rows:] * unit_s


def _indicator(kind: IntArray, n_kinds: int) -> FloatArray:
    """1 for the kind of each unit, else 0, (n_units, n_kinds)."""
    indicator: FloatArray = (np.arange(n_kinds) == kind[:, None]).astype(np.float64)
    return indicator
