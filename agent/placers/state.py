"""A run of a placer: its budget, the state of its search, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from agent.placers.improvements import Improvement, Improvements
from envs.objective import OVER_BYTES, TOTAL_S, Objective
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.simulator.simulate import SimulatedStep
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import InputError
from graphs.system.running_time import Clock, running_cpu_s, running_s

BATCH = 64
"""Placements scored between two readings of the clock."""
N_LEADERS = 3
"""Placements that a search remembers, to go on from several."""
LEAST_SECONDS = 1e-9
"""Seconds of a budget that is as good as spent."""


class PlacerError(InputError):
    """An unknown placer, or a budget that allows nothing; the message says what would be right."""


@dataclass(frozen=True)
class Budget:
    """Limits of one run of a placer; the first one reached ends it.

    Attributes:
        evaluations: simulated complete placements, at least 1; None = no limit.
        seconds: more than 0, without those of compiling and loading kernels; None = no limit. A first
            placement is scored in any case, by heuristics as soon as they have one.
        clock: counts the seconds: `running_s` those of the wall, `running_cpu_s` those of the processor.

    Raises:
        PlacerError: on construction, if a limit is out of range or there is none at all.
    """

    evaluations: int | None = 10_000
    seconds: float | None = None
    clock: Clock = running_s

    def __post_init__(self) -> None:
        if self.evaluations is None and self.seconds is None:
            raise PlacerError("a budget without limits never ends; give evaluations, seconds or both")
        if self.evaluations is not None and self.evaluations < 1:
            raise PlacerError(f"a budget of {self.evaluations} evaluations allows nothing; give at least 1")
        if self.seconds is not None and not 0 < self.seconds < np.inf:
            raise PlacerError(f"a budget of {self.seconds} seconds; give a finite number above 0")

    def to_json(self) -> dict[str, object]:
        """Returns its limits, and the name of its clock where that is not the wall's."""
        limits: dict[str, object] = {"evaluations": self.evaluations, "seconds": self.seconds}
        return limits if self.clock is running_s else limits | {"clock": self.clock.__name__}

    def shared(self, count: int) -> Budget:
        """Returns one of so many equal shares of it, of at least one evaluation."""
        evaluations, seconds = self.evaluations, self.seconds
        evaluations = evaluations and max(1, evaluations // count)
        return replace(self, evaluations=evaluations, seconds=seconds and seconds / count)


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """Outcome of one run of a placer.

    Attributes:
        placement: the best placement it scored; a feasible one beats any that is out of memory.
        wall_s: wall seconds that it took, scoring included, whatever clock its budget has.
        cpu_s: processor seconds of it, of all threads of this process.
        improvements: when its best feasible placement got better, thinned; may be empty.
        lower_bound_s: no feasible placement has a shorter step, by a proof of the placer; 0 without one.
    """

    objective: Objective
    placement: Placement
    evaluations: int
    wall_s: float
    cpu_s: float
    improvements: tuple[Improvement, ...] = ()
    lower_bound_s: float = 0.0

    @cached_property
    def step_time(self) -> SimulatedStep:
        """The step under the placement; simulated once, when it is asked for."""
        return self.objective.simulate(self.placement)

    @property
    def feasible(self) -> bool:
        """Says whether every device has the memory."""
        return self.step_time.fits


class Leader(NamedTuple):
    """A placement that is among the best of a search."""

    score: tuple[float, float]  # bytes over the memory limits, step time in seconds
    device_of: IntArray  # (n_ops,)


class SearchState:
    """State of one run of a placer: the best placement so far, and what is left of the budget.

    Placements compare by bytes over the memory limits first and by seconds second: a feasible one beats any
    that is out of memory, and among the latter the least overflow wins. Of what is scored at once, or found
    by another strategy, the best is kept; `leaders` are the best few of those, best first.

    Attributes:
        objective: scores placements.
        problem: the graph on the devices that placements name.
    """

    def __init__(self, objective: Objective | Problem, budget: Budget, *, must_place: bool = True) -> None:
        """Begins the run; the clock starts.

        Args:
            objective: time to be made short; of a problem, its step.
            must_place: a placement is needed, however long it takes.
        """
        self.objective = Objective(objective) if isinstance(objective, Problem) else objective
        self.problem = self.objective.problem
        self.budget = budget
        self.must_place = must_place
        self.evaluations = 0
        self.simulation_s = 0.0  # seconds of the last simulations that were scored, each; 0 before
        self.least_simulation_s = np.inf  # of all of them: one may wait for a core
        self.lower_bound_s = 0.0
        self.leaders: list[Leader] = []
        self._improvements = Improvements()
        self._began, self._wall_began, self._cpu_began = budget.clock(), running_s(), running_cpu_s()

    @property
    def best(self) -> IntArray | None:
        """The best placement so far, int (n_ops,)."""
        return self.leaders[0].device_of if self.leaders else None

    @property
    def best_score(self) -> tuple[float, float]:
        """Bytes over the memory limits and step time in seconds of the best placement; infinite before."""
        return self.leaders[0].score if self.leaders else (np.inf, np.inf)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began, by the clock of the budget."""
        return self.budget.clock() - self._began

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, 0 to 1."""
        spent = [0.0]
        if self.budget.evaluations is not None:
            spent.append(self.evaluations / self.budget.evaluations)
        if self.budget.seconds is not None:
            spent.append(self.elapsed_s / self.budget.seconds)
        return min(max(spent), 1.0)

    @property
    def left(self) -> int:
        """Evaluations that may still be spent: at least 1 at first, 0 when either limit is reached."""
        if self.best is None:
            return self.budget.evaluations or BATCH
        if self.progress >= 1.0:
            return 0
        return BATCH if self.budget.evaluations is None else self.budget.evaluations - self.evaluations

    def batch(self, seconds_each: float) -> int:
        """Returns how many evaluations to make before the clock is read again, 0 where the budget is spent.

        Args:
            seconds_each: seconds that an evaluation takes; 0 if that is not known yet.
        """
        batch = min(self.left, BATCH)
        if self.budget.seconds is None or not batch:
            return batch
        in_time = int(self.seconds_left / seconds_each) if seconds_each else 1
        return min(batch, max(in_time, 1))

    @property
    def _overdue(self) -> int:
        """Evaluations to make at once, however many seconds have passed."""
        most = self.budget.evaluations
        return BATCH if most is None else min(max(most - self.evaluations, int(self.best is None)), BATCH)

    @property
    def needs_placement(self) -> bool:
        """Says whether a first placement is still needed, however many seconds it takes."""
        return self.must_place and self.best is None

    @property
    def is_feasible(self) -> bool:
        """Says whether the best placement so far is feasible."""
        return self.best_score[OVER_BYTES] == 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit, if there is one; negative beyond it."""
        return np.inf if self.budget.seconds is None else self.budget.seconds - self.elapsed_s

    def has_time(self, simulations: int, *, but_s: float = 0.0) -> bool:
        """Says whether the budget is not spent, and what takes as long as some simulations will end in time.

        Until a placement is feasible, whatever may find one has time while there is any.

        Args:
            but_s: seconds of the budget that are for something else.
        """
        one_s = self.least_simulation_s if self.simulation_s else 0.0
        in_time = simulations * one_s < self.seconds_left - but_s
        return self.left > 0 and (in_time or not self.is_feasible)

    def score(self, devices_of: IntArray, *, overdue: bool = False) -> FloatArray:
        """Simulates placements until the budget ends, and keeps the best.

        Args:
            devices_of: device of each op, one placement a row, int (n, n_ops).
            overdue: also score them beyond the limit of seconds, as finding them took much longer than
                scoring them will.

        Returns:
            Scores with the columns `OVER_BYTES` and `TOTAL_S`, (n scored, 2), with n scored <= n.
        """
        scores = [np.zeros((0, 2))]
        done = 0
        while done < len(devices_of) and (n := self._overdue if overdue else self.batch(self.simulation_s)):
            batch, began = devices_of[done : done + n], self.budget.clock()
            scored = self.objective.scores(batch)
            self.evaluations += len(batch)
            self.simulation_s = (self.budget.clock() - began) / len(batch)
            self.least_simulation_s = min(self.least_simulation_s, self.simulation_s)
            best = int(np.lexsort((scored[:, TOTAL_S], scored[:, OVER_BYTES]))[0])
            self.keep(batch[best], float(scored[best, TOTAL_S]), float(scored[best, OVER_BYTES]))
            scores.append(scored)
            done += len(batch)
        return np.concatenate(scores)

    def spend(self, evaluations: int) -> None:
        """Counts simulations of complete placements that `score` did not make."""
        self.evaluations += evaluations

    def score_units(self, unit_devices: IntArray) -> FloatArray:
        """Does what `score` does for devices given per placement unit, int (n, n_units)."""
        return self.score(unit_devices[:, self.problem.graph.unit_of])

    def keep(self, device_of: IntArray, total_s: float, over_bytes: float) -> None:
        """Keeps a placement that was scored elsewhere, if it is among the best."""
        score, scores = (over_bytes, total_s), [leader.score for leader in self.leaders]
        if score in scores or (len(scores) == N_LEADERS and score > scores[-1]):
            return
        if score < self.best_score and over_bytes == 0.0:
            self._improvements.add(self.evaluations, self.elapsed_s, total_s)
        leaders = [*self.leaders, Leader(score, np.array(device_of, dtype=np.int64))]
        self.leaders = sorted(leaders, key=lambda leader: leader.score)[:N_LEADERS]

    def run_alone(
        self,
        strategy: Strategy,
        rng: np.random.Generator,
        *,
        within: int | None = None,
        within_s: float = np.inf,
    ) -> None:
        """Runs another strategy with what is left of the budget, and keeps its best placement.

        It does what it would do alone: one that plans until a placement is feasible does not take the present
        best for its own. But if there is a best, the other strategy may end without a placement.

        Args:
            within: evaluations that the other strategy may make, if not all that are left.
            within_s: seconds that the other strategy may take, if not all that are left; not before a
                placement is feasible.
        """
        limit_s = within_s if self.is_feasible else np.inf
        limits = [count for count in (within, self.budget.evaluations and self.left) if count is not None]
        is_timed = self.budget.seconds is not None
        budget = replace(
            self.budget,
            evaluations=min(limits, default=None),
            seconds=max(min(self.seconds_left, limit_s), LEAST_SECONDS) if is_timed else None,
        )
        search = SearchState(self.objective, budget, must_place=self.needs_placement)
        before = self.evaluations, self.elapsed_s
        search.simulation_s, search.least_simulation_s = self.simulation_s, self.least_simulation_s
        strategy(search, rng)
        self.simulation_s, self.least_simulation_s = search.simulation_s, search.least_simulation_s
        self._improvements.add_later(search._improvements.all(), *before)
        self.spend(search.evaluations)
        if search.best is not None:
            over_bytes, total_s = search.best_score
            self.keep(search.best, total_s, over_bytes)

    def result(self) -> PlacementResult:
        """Makes the outcome of the run."""
        if self.best is None:
            raise RuntimeError("a placer ended without a placement")
        placement, improvements = Placement(self.best), self._improvements.all()
        spent = running_s() - self._wall_began, running_cpu_s() - self._cpu_began
        return PlacementResult(
            self.objective, placement, self.evaluations, *spent, improvements, self.lower_bound_s
        )

    @classmethod
    def place(
        cls, strategy: Strategy, objective: Objective, budget: Budget, rng: np.random.Generator
    ) -> PlacementResult:
        """Runs a strategy, and returns its outcome."""
        search = cls(objective, budget)
        strategy(search, rng)
        return search.result()


Strategy = Callable[[Any, np.random.Generator], None]
"""Scores placements in the `SearchState` of its kind until it has no more to try or the budget ends."""
