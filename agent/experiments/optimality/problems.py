"""Problems small enough for `exact`: graphs coarsened to few units, and whole graphs placed by module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, factorial

from agent.placers.exact.enumeration import MAX_PLACEMENTS
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.coarsening.coarsen import coarsen
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph

BY_MODULE = ("module", "block", "layer")
"""Granularities, finest first."""
LEAST_PLACEMENTS = 3_000
"""Fewer than these, and a search of the least budget tries more than a tenth of them."""


@dataclass(frozen=True)
class Setting:
    """The settings of a problem: graph, cluster and granularity.

    Attributes:
        n_units: placement units that graphs are coarsened to; 0: they are left whole.
        granularity: of whole graphs; those that can be solved by a finer one are left out.
    """

    cluster: str
    n_units: int = 0
    granularity: str = "op"

    @property
    def folder(self) -> str:
        """Name of the folder of its evaluations."""
        return f"{self.cluster.replace(':', '-')}-{self.n_units or self.granularity}"

    @property
    def can_be_tried(self) -> bool:
        """Says whether all placements can be tried, so that no solver is needed."""
        return bool(get_cluster(self.cluster).n_devices ** self.n_units <= MAX_PLACEMENTS)

    def graphs(self, whole: Sequence[OpGraph]) -> list[OpGraph]:
        """Makes the graphs that are placed; those that do not fit are left out."""
        cluster = get_cluster(self.cluster)
        if self.n_units:
            chosen = [few_units(graph, self.n_units) for graph in whole]
        else:
            finest = [finest_that_is_small(graph, cluster) for graph in whole]
            chosen = [
                graph for found in finest if found for name, graph in [found] if name == self.granularity
            ]
        return [graph for graph in chosen if Problem(graph, cluster).is_feasible]


SETTINGS = tuple(
    setting
    for name in ("4xv100", "4xa100-pcie")
    for setting in (
        *(Setting(f"{name}:2", n_units) for n_units in (18, 32)),
        Setting(f"{name}:3", 11),
        Setting(name, 9),
        *(Setting(f"{name}:{n}", granularity=level) for n in (2, 3) for level in BY_MODULE),
    )
)
"""All placements of the units are tried, but for 32 units, where it is up to the solver."""


def few_units(graph: OpGraph, n_units: int) -> OpGraph:
    """A graph coarsened to at most so many units, as a graph of its own."""
    return replace(coarsen(graph, n_units).coarse, name=f"{graph.name}-in-{n_units}")


def finest_that_is_small(graph: OpGraph, cluster: Cluster) -> tuple[str, OpGraph] | None:
    """The finest granularity of whose placements `exact` tries all, and the graph that has it.

    None where there is none, or it leaves fewer than `LEAST_PLACEMENTS` that differ.
    """
    for granularity in BY_MODULE:
        placed = with_granularity(graph, granularity)
        if cluster.n_devices ** len(placed.units) <= MAX_PLACEMENTS:
            named = replace(placed, name=f"{graph.name}-by-{granularity}")
            is_enough = n_different(len(placed.units), cluster.n_devices) >= LEAST_PLACEMENTS
            return (granularity, named) if is_enough else None
    return None


def n_different(n_units: int, n_devices: int) -> int:
    """Placements of units on devices that are alike, but for the names of the devices.

    Sums Stirling numbers of the second kind.
    """
    return sum(_onto(n_units, n_used) // factorial(n_used) for n_used in range(1, n_devices + 1))


def _onto(n_units: int, n_devices: int) -> int:
    """Placements that leave no device empty."""
    return sum((-1) ** n * comb(n_devices, n) * (n_devices - n) ** n_units for n in range(n_devices + 1))
