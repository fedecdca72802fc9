"""A relaxation of the step as a model of CP-SAT, which minimizes it for the placer `exact`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.bounds.lower_bound import heads_and_tails
from envs.problem import Problem
from graphs.system.array_types import IntArray
from graphs.system.running_time import Clock, running_s

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

TICKS = 10**6
"""Whole units of time in a step on the fastest single device; seconds are rounded down to them."""
HORIZON_STEPS = 4
"""The longest relaxed step that is looked at, over that of the fastest single device."""
MAX_RENAMED = 4
"""Devices whose renamings are all simulated."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of the solver; its bound is in ticks."""

    is_empty: bool
    is_solved: bool
    bound: float
    device_of: IntArray


class RelaxationError(Exception):
    """A model takes too long to be made."""


class Relaxation:
    """The model that CP-SAT minimizes; times are in ticks.

    Args:
        seconds: limit of the time that making it takes.
        clock: counts these seconds.

    Raises:
        RelaxationError: it would take longer.
    """

    def __init__(
        self, problem: Problem, tick_s: float, seconds: float = np.inf, clock: Clock = running_s
    ) -> None:
        from ortools.sat.python import cp_model

        self._clock, until = clock, clock() + seconds
        self.problem, graph = problem, problem.graph
        self.model = cp_model.CpModel()
        self.ops = np.flatnonzero(graph.is_compute).tolist()
        n_units, n_devices = len(graph.units), problem.n_devices
        self.on = [
            [self.model.new_bool_var(f"on_{unit}_{device}") for device in range(n_devices)]
            for unit in range(n_units)
        ]
        for row in self.on:
            self.model.add_exactly_one(row)
        self.ticks = np.floor(problem.op_seconds / tick_s).astype(np.int64)
        self.gap = int(problem.cluster.op_gap_s / tick_s)
        horizon = HORIZON_STEPS * TICKS
        head, tail = [
            np.minimum(np.floor(seconds / tick_s), horizon).astype(np.int64)
            for seconds in heads_and_tails(problem)
        ]
        self.start = {op: self.model.new_int_var(int(head[op]), horizon, f"start_{op}") for op in self.ops}
        self.length = {op: self._length(op) for op in self.ops}
        self.makespan = self.model.new_int_var(0, horizon, "makespan")
        self._same: dict[tuple[int, int], Any] = {}
        self._wait_for_inputs(tick_s)
        self._share_devices(until)
        self._fit_memory()
        if self._may_rename:  # each placement stands for its renamings
            self.model.add(self.on[0][0] == 1)
        for op in self.ops:
            self.model.add(self.makespan >= self.start[op] + self.length[op] + int(tail[op]))
        self.model.minimize(self.makespan)

    def below(self, ticks: int | None) -> None:
        """Requires steps shorter than the given number of ticks."""
        if ticks is not None:
            self.model.add(self.makespan <= max(ticks - 1, 0))

    def hint(self, device_of: IntArray | None) -> None:
        """Tells the solver which placement to try first."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        if device_of is not None:
            for unit, row in enumerate(self.on):
                chosen = int(device_of[self.problem.graph.units.row(unit)[0]])
                for device, variable in enumerate(row):
                    self.model.add_hint(variable, int(device == chosen))

    def renamings(self, device_of: IntArray) -> IntArray:
        """Placements that equal one but for the names of like devices, int (n, n_ops), itself among them.

        The relaxed step is the same for all. The simulated one is not where the order in which a tensor is
        sent to several devices goes by their index.
        """
        if not self._may_rename:
            return device_of[None]
        names = np.array(list(itertools.permutations(range(self.problem.n_devices))))
        return np.ascontiguousarray(names[:, device_of])

    def forbid(self, device_of: IntArray) -> None:
        """Cuts a placement off, and its renamings."""
        units = self.problem.graph.units
        for placement in self.renamings(device_of):
            chosen = [int(placement[units.row(unit)[0]]) for unit in range(len(self.on))]
            self.model.add_bool_or(
                [row[device].negated() for row, device in zip(self.on, chosen, strict=True)]
            )

    def solve(self, seconds: float, on_solution: Any) -> Outcome:
        """Minimizes the relaxed step.

        Args:
            on_solution: called with the placement of each solution.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        status = solver.status_name(solver.solve(self.model, _Solutions(self, on_solution)))
        nothing = np.zeros(0, dtype=np.int64)
        if status == "INFEASIBLE":
            return Outcome(True, False, np.inf, nothing)
        is_solved = status == "OPTIMAL"
        placement = self.placement(solver.value) if is_solved else nothing
        return Outcome(False, is_solved, solver.best_objective_bound, placement)

    def placement(self, value: Any) -> IntArray:
        """Device of each op in a solution, int (n_ops,)."""
        of_unit = np.array([[int(value(variable)) for variable in row] for row in self.on]).argmax(axis=1)
        return of_unit[self.problem.graph.unit_of]

    def _length(self, op: int) -> Any:
        ticks, row = self.ticks[op], self.on[self.problem.graph.unit_of[op]]
        if (ticks == ticks[0]).all():
            return int(ticks[0])
        return sum(int(count) * variable for count, variable in zip(ticks, row, strict=True))

    def _wait_for_inputs(self, tick_s: float) -> None:
        graph = self.problem.graph
        for producer, consumer, n_bytes in _edges(self.problem):
            ready = self.start[producer] + self.length[producer] if producer in self.start else 0
            if producer in self.start:
                self.model.add(self.start[consumer] >= ready)
            first, second = int(graph.unit_of[producer]), int(graph.unit_of[consumer])
            if first == second:
                continue
            arrays = self.problem.arrays
            transfer_s = (n_bytes + arrays.n_half) / arrays.bandwidth + arrays.latency
            ticks = np.floor(transfer_s / tick_s).astype(np.int64)
            between = ticks[~np.eye(len(ticks), dtype=bool)]
            apart = self._is_same(first, second).negated()
            if least := int(between.min()):
                self.model.add(self.start[consumer] >= ready + least).only_enforce_if(apart)
            if (between == between[0]).all():
                continue
            for a, b in itertools.permutations(range(len(ticks)), 2):
                both = [self.on[first][a], self.on[second][b]]
                self.model.add(self.start[consumer] >= ready + int(ticks[a, b])).only_enforce_if(both)

    def _share_devices(self, until: float) -> None:
        graph = self.problem.graph
        timed = [op for op in self.ops if self.ticks[op].any()]
        for first, second in self._unordered(timed) if self.problem.cluster.schedule == "program" else ():
            if self._clock() > until:
                raise RelaxationError
            units = int(graph.unit_of[first]), int(graph.unit_of[second])
            after = self.model.add(self.start[second] >= self.start[first] + self.length[first] + self.gap)
            if units[0] != units[1]:
                after.only_enforce_if(self._is_same(*units))
        for device in range(self.problem.n_devices):
            intervals = [
                self.model.new_optional_fixed_size_interval_var(
                    self.start[op], int(self.ticks[op, device]), self.on[graph.unit_of[op]][device], ""
                )
                for op in timed
            ]
            self.model.add_no_overlap(intervals)
            # What a device computes takes no longer than the step.
            load = [int(self.ticks[op, device]) * self.on[graph.unit_of[op]][device] for op in timed]
            self.model.add(self.makespan >= sum(load))

    def _unordered(self, timed: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Pairs of ops, the earlier one first, of which the later one need not wait for the earlier one.

        A reader waits for what it reads, and so on. Where devices rest after an op, that alone is too little.
        """
        graph, ops = self.problem.graph, np.array(timed, dtype=np.int64)
        row = np.full(graph.n_ops, -1)
        row[ops] = np.arange(len(ops))
        waits_for = row[:, None] == np.arange(len(ops))
        for producer, consumer in graph.edges.tolist():  # producers come first
            waits_for[consumer] |= waits_for[producer]
        waits = waits_for[ops].T
        if self.gap:
            direct = row[graph.edges]
            waits[tuple(direct[(direct >= 0).all(axis=1)].T)] = False
        first, second = np.nonzero(np.triu(~waits, k=1))
        yield from zip(ops[first].tolist(), ops[second].tolist(), strict=True)

    def _fit_memory(self) -> None:
        graph = self.problem.graph
        resident = np.bincount(graph.unit_of, graph.resident_bytes, minlength=len(self.on))
        for device, limit in enumerate(self.problem.cluster.memory_bytes):
            if resident.sum() > limit:
                shares = np.floor(resident / limit * 10**6).astype(np.int64).tolist()
                held = [share * row[device] for share, row in zip(shares, self.on, strict=True)]
                self.model.add(sum(held) <= 10**6)

    @property
    def _may_rename(self) -> bool:
        """Says whether devices and links are alike, and their renamings few enough to simulate all.

        Links are shared in ways that do not tell devices apart (`Cluster.sharing`).
        """
        problem, arrays = self.problem, self.problem.arrays
        seconds, memory = problem.op_seconds, problem.cluster.memory_bytes
        apart = ~np.eye(problem.n_devices, dtype=bool)
        links = [matrix[apart] for matrix in (arrays.bandwidth, arrays.latency, arrays.n_half)]
        return bool(
            problem.n_devices <= MAX_RENAMED
            and (seconds == seconds[:, :1]).all()
            and (memory == memory[0]).all()
            and all((link == link[0]).all() for link in links)
        )

    def _is_same(self, first: int, second: int) -> Any:
        """A variable that says whether two units are on one device."""
        key = min(first, second), max(first, second)
        if key not in self._same:
            same = self.model.new_bool_var(f"same_{key[0]}_{key[1]}")
            for a, b in zip(self.on[key[0]], self.on[key[1]], strict=True):
                self.model.add_bool_or(same.negated(), a.negated(), b)
                self.model.add_bool_or(same.negated(), a, b.negated())
                self.model.add_bool_or(same, a.negated(), b.negated())
            self._same[key] = same
        return self._same[key]


def _Solutions(relaxed: Relaxation, on_solution: Any) -> cp_model.CpSolverSolutionCallback:  # noqa: N802
    from ortools.sat.python import cp_model

    class Solutions(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            on_solution(relaxed.placement(self.value))

    return Solutions()


def _edges(problem: Problem) -> Iterator[tuple[int, int, float]]:
    """Producer, computing consumer and bytes of each tensor."""
    graph = problem.graph
    for tensor in range(graph.n_tensors):
        for consumer in graph.consumers.row(tensor):
            if graph.is_compute[consumer]:
                yield int(graph.tensor_producer[tensor]), int(consumer), float(graph.tensor_bytes[tensor])
