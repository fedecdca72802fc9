"""Lower bound on the step time from what each kind of device can hold and has to run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from agent.evaluation.assignment_rows import KindCosts, Row, kind_costs, tightest_rows
from envs.problem import Problem
from graphs.op_graph import FloatArray, IntArray

MAX_KINDS = 4
"""Kinds of devices for which the linear program is solved."""
MAX_ROUNDS = 6
"""Times that rows are added."""
MAX_COLUMNS = 20
"""Assignments that are made in a round at most."""
MIN_GAIN = 1e-3
"""Share of the step by which a row must be broken, or the bound may grow, to go on."""
EXCESS_STEPS = 1e3
"""Steps on the fastest device that memory beyond the capacity of a kind costs, per capacity."""
NO_EXCESS = 1e-6


def assignment_bound_s(problem: Problem, head: FloatArray, tail: FloatArray) -> float:
    """Lower bound on the step time of every feasible placement, in seconds; counts memory, not transfers.

    A placement puts each unit on one kind of device; it is feasible only if no unit keeps more resident bytes
    than one device has, and no kind holds more than all its devices have. The step takes at least
    - the work of a window of time on each kind, spread over its devices, and the least time around it;
    - the work of an op's ancestors on one kind, the op, and the work of its descendants on another;
    - the ops of a path, one after the other.

    The least step is a linear program if units may be cut in pieces, solved by column generation (Dantzig and
    Wolfe 1960); rows that its solution breaks are added. The bound does not rely on the solver: it is the
    Lagrangian of the program at the solver's multipliers, a lower bound for any that are not negative (weak
    duality; Fisher 1981).

    With one kind of device nothing is gained: pieces of equal size on all devices meet every limit of memory.

    Args:
        head, tail: least seconds before the start and after the end of each op, (n_ops,).

    Returns:
        Seconds; 0 where there is one kind, more than `MAX_KINDS`, or not enough memory for any placement.
    """
    costs = kind_costs(problem, head, tail)
    fits = costs.resident[:, None] <= costs.memory
    if not 1 < len(costs.memory) <= MAX_KINDS or not fits.any(axis=1).all():
        return 0.0
    program = _Program(costs, fits, problem.scale_s)
    for _ in range(MAX_ROUNDS):
        found = tightest_rows(costs, program.share)
        broken = [rows for least_s, rows in found if least_s > program.step_s * (1 + MIN_GAIN)]
        if not broken:
            break
        program.rows += [row for rows in broken for row in rows]
        program.solve()
    return program.best_s if program.excess <= NO_EXCESS else 0.0


@dataclass(eq=False)
class _Program:
    """The linear program: assignments of all units to kinds are its columns.

    Attributes:
        fits: whether each unit may be on each kind, bool (n_units, n_kinds).
        unit_s: seconds in which the solver counts.
        rows: what the step takes at least.
        columns: kind of each unit, int (n_units,) each.
        best_s: greatest bound so far, seconds.
        best: the weights and prices that gave it.
        share: of each unit on each kind in the last solution, (n_units, n_kinds).
        step_s: least step of the last solution, seconds.
        excess: greatest share of a kind's memory beyond its capacity in the last solution.
    """

    costs: KindCosts
    fits: NDArray[np.bool_]
    unit_s: float
    rows: list[Row] = field(default_factory=list)
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
        self.share = _indicator(fastest, self.fits.shape[1])
        self.capacity = self.costs.memory * self.costs.n_devices

    def solve(self) -> None:
        """Adds assignments until the bound is near the least step."""
        unit = np.arange(len(self.fits))
        seconds = np.stack([row.seconds for row in self.rows])
        least_s = np.array([row.least_s for row in self.rows])
        step_s = np.stack([seconds[:, unit, kind].sum(axis=1) + least_s for kind in self.columns], axis=1)
        held = np.stack([self._held(kind) for kind in self.columns], axis=1)
        new_rows = len(self.rows) - len(self.best[0])
        self.best = np.append(self.best[0], np.zeros(new_rows)), self.best[1]
        for _ in range(MAX_COLUMNS):
            multipliers = self._mix(step_s, held)
            if multipliers is None:
                return
            if self.best_s > 0.0:  # Halfway to the best so far: Wentges 1997.
                multipliers = (multipliers[0] + self.best[0]) / 2, (multipliers[1] + self.best[1]) / 2
            bound_s, kind = self.lagrangian(seconds, least_s, *multipliers)
            if bound_s > self.best_s:
                self.best_s, self.best = bound_s, multipliers
            if self.step_s - self.best_s <= MIN_GAIN * self.best_s:
                return
            self.columns.append(kind)
            new_s = seconds[:, unit, kind].sum(axis=1) + least_s
            step_s, held = np.column_stack([step_s, new_s]), np.column_stack([held, self._held(kind)])

    def lagrangian(
        self, seconds: FloatArray, least_s: FloatArray, weights: FloatArray, prices: FloatArray
    ) -> tuple[float, IntArray]:
        """Computes a lower bound on the step, and the kinds of the units that attain it, int (n_units,).

        Args:
            seconds, least_s: of the rows, (n_rows, n_units, n_kinds) and (n_rows,).
            weights: of the rows, (n_rows,), not negative, with sum 1.
            prices: seconds for all the memory of each kind, (n_kinds,), not negative.
        """
        used = np.flatnonzero(weights)
        cost = np.tensordot(weights[used], seconds[used], axes=1)
        cost += self.costs.resident[:, None] * (prices / self.capacity)
        cost = np.where(self.fits, cost, np.inf)
        return float(weights @ least_s + cost.min(axis=1).sum() - prices.sum()), cost.argmin(axis=1)

    def _held(self, kind: IntArray) -> FloatArray:
        """Resident bytes on each kind over its capacity, (n_kinds,)."""
        return np.bincount(kind, self.costs.resident, len(self.capacity)) / self.capacity

    def _mix(self, step_s: FloatArray, held: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Finds the mixture of the columns with the least step; sets `share`, `step_s` and `excess`.

        Args:
            step_s: seconds that each row asks for with each column, (n_rows, n_columns).
            held: share of each kind's memory that each column takes, (n_kinds, n_columns).

        Returns:
            Weights of the rows, (n_rows,), and prices of memory, (n_kinds,); None if the solver fails.
        """
        n_rows, n_columns = step_s.shape
        n_kinds = len(held)
        limits = np.zeros((n_rows + n_kinds, n_columns + 2))
        limits[:n_rows, :-2], limits[:n_rows, -2] = step_s / self.unit_s, -1.0
        limits[n_rows:, :-2], limits[n_rows:, -1] = held, -1.0
        solution = linprog(
            np.append(np.zeros(n_columns), [1.0, EXCESS_STEPS]),
            A_ub=limits,
            b_ub=np.append(np.zeros(n_rows), np.ones(n_kinds)),
            A_eq=np.append(np.ones(n_columns), [0.0, 0.0])[None],
            b_eq=[1.0],
            method="highs",
        )
        if solution.status != 0:
            return None
        self.step_s, self.excess = float(solution.fun) * self.unit_s, float(solution.x[-1])
        self.share = sum(
            part * _indicator(kind, n_kinds)
            for part, kind in zip(solution.x[:-2], self.columns, strict=True)
            if part > 0.0
        )
        duals = np.maximum(-solution.ineqlin.marginals, 0.0)
        return duals[:n_rows] / max(duals[:n_rows].sum(), NO_EXCESS), duals[n_rows:] * self.unit_s


def _indicator(kind: IntArray, n_kinds: int) -> FloatArray:
    """1 for the kind of each unit, else 0, (n_units, n_kinds)."""
    indicator: FloatArray = (np.arange(n_kinds) == kind[:, None]).astype(np.float64)
    return indicator
