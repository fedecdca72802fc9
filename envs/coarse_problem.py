"""A coarsened problem: what a placer sees of a graph that is too large to place op by op."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from envs.problem import Problem
from graphs.coarsening.coarsen import MAX_UNITS, Coarsening, coarsen
from graphs.op_graph import FloatArray


@dataclass(frozen=True, eq=False)
class CoarseProblem(Problem):
    """The coarse graph of a problem on its cluster; a coarse op takes as long as its ops one after the other.

    Attributes:
        coarsening: of the graph; `expand` takes a placement back.
    """

    coarsening: Coarsening

    @cached_property
    def fine(self) -> Problem:
        """The problem itself."""
        return Problem(self.coarsening.fine, self.cluster)

    @cached_property
    def op_seconds(self) -> FloatArray:
        """Seconds of every coarse op on every device, launches and rests between its ops included."""
        total = self.coarsening.total
        seconds = self.fine.op_seconds
        busy = np.stack([total(of_device) for of_device in seconds.T], axis=1)
        runs = np.stack([total((of_device > 0).astype(np.float64)) for of_device in seconds.T], axis=1)
        coarse: FloatArray = busy + np.maximum(runs - 1, 0) * self.cluster.op_gap_s
        return coarse

    @cached_property
    def always_fits(self) -> bool:
        """Whether no placement of the ops can overflow a device: the coarse graph lacks tensors in groups."""
        return self.fine.always_fits


def coarse_problem(problem: Problem, n_groups: int = MAX_UNITS) -> CoarseProblem:
    """Coarsen a problem to at most `n_groups` decision units.

    Raises:
        GraphError: less than one group is asked for.
    """
    coarsening = coarsen(problem.graph, n_groups)
    return CoarseProblem(coarsening.coarse, problem.cluster, coarsening)
