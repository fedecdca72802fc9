"""Coarsened problems, for graphs that are too large to place op by op."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from envs.problem import Problem
from graphs.coarsening.coarsen import MAX_UNITS, Coarsening, coarsen
from graphs.system.array_types import FloatArray


@dataclass(frozen=True, eq=False)
class CoarseProblem(Problem):
    """The coarse graph of a problem; a coarse op takes as long as its ops one after the other.

    Attributes:
        coarsening: of the graph; its `expand` converts a placement back.
    """

    coarsening: Coarsening

    def _check_times(self) -> None:
        """Checks the original problem; sums of its times may be longer than a single time may."""
        _ = self.fine

    @cached_property
    def fine(self) -> Problem:
        """The original problem."""
        return Problem(self.coarsening.fine, self.cluster)

    @cached_property
    def op_seconds(self) -> FloatArray:
        """The seconds of every coarse op on every device, launches of its ops and gaps included.

        They are at least the time to issue its ops after the first, and a mean op after that. That the host
        thread issues nothing else in that time, or has done so before, is left out.
        """
        total = self.coarsening.total
        seconds = self.fine.op_seconds
        busy = np.stack([total(of_device) for of_device in seconds.T], axis=1)
        runs = np.stack([total((of_device > 0).astype(np.float64)) for of_device in seconds.T], axis=1)
        coarse: FloatArray = busy + np.maximum(runs - 1, 0) * self.cluster.op_gap_s
        if not self.cluster.issue_s or self.cluster.issue_per == "step":
            return coarse
        issued: FloatArray = np.maximum(runs - 1, 0) * self.cluster.issue_s + busy / np.maximum(runs, 1)
        return np.maximum(coarse, issued)

    @cached_property
    def always_fits(self) -> bool:
        """Says whether no placement of the original ops can overflow; the coarse graph lacks some tensors."""
        return self.fine.always_fits


def coarse_problem(problem: Problem, n_groups: int = MAX_UNITS) -> CoarseProblem:
    """Coarsens a problem to at most `n_groups` placement units.

    Raises:
        GraphError: less than one group is asked for.
    """
    coarsening = coarsen(problem.graph, n_groups)
    return CoarseProblem(coarsening.coarse, problem.cluster, coarsening)
