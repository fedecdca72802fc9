"""What other costs change: placements found under old costs against those found under new ones.

A cluster stands for its costs: two clusters with as many devices describe the same machine, once with the old
and once with the new times of ops and links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from zlib import crc32

import numpy as np

from agent.evaluation.summary import geometric_mean
from agent.placers.base import Budget, Placer
from envs.cluster.cluster import Cluster, ClusterError
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import OpGraph


@dataclass(frozen=True)
class PlacementRow:
    """One graph, placed under the old costs and under the new ones; all seconds are by the new costs.

    Attributes:
        old_cluster, new_cluster: names of the clusters.
        old_s, new_s: step time of the placement that was found under the old and the new costs.
        old_fits, new_fits: whether these placements fit into the memory of the new cluster.
        single_s: step time on the fastest single device, as if its memory sufficed.
    """

    old_cluster: str
    new_cluster: str
    placer: str
    family: str
    graph: str
    old_s: float
    new_s: float
    old_fits: bool
    new_fits: bool
    single_s: float


COLUMNS = tuple(field.name for field in fields(PlacementRow))
"""Columns of `placements.csv`."""


def compare_placements(
    old: Cluster, new: Cluster, graphs: Iterable[OpGraph], placers: Sequence[Placer], budget: Budget
) -> Iterator[PlacementRow]:
    """Places graphs under both costs, and times both placements under the new ones.

    Args:
        old, new: clusters whose devices correspond by their index.
        budget: of each run of a placer; both runs draw from the same seed.

    Raises:
        ClusterError: the clusters have different numbers of devices.
    """
    if old.n_devices != new.n_devices:
        raise ClusterError(
            f"clusters '{old.name}' and '{new.name}' have {old.n_devices} and {new.n_devices} devices; "
            "compare clusters of as many"
        )
    for graph in graphs:
        before, after = Problem(graph, old), Problem(graph, new)
        for placer in placers:
            found = [
                placer.place(problem, budget, np.random.default_rng([crc32(graph.name.encode())]))
                for problem in (before, after)
            ]
            old_step, new_step = (simulate_problem(after, each.placement.device_of) for each in found)
            yield PlacementRow(
                old.name,
                new.name,
                placer.name,
                graph.family,
                graph.name,
                old_s=old_step.total_s,
                new_s=new_step.total_s,
                old_fits=old_step.fits,
                new_fits=new_step.fits,
                single_s=float(after.single_device_s.min()),
            )


def placements_table(rows: Sequence[PlacementRow]) -> list[list[str]]:
    """Cells of a table: a head and a row per pair of clusters and placer, of graphs where both fit."""
    head = ["clusters", "placer", "graphs", "old / new", "old / single device", "new / single device"]
    body = []
    for group in {(row.old_cluster, row.new_cluster, row.placer): None for row in rows}:
        members = [row for row in rows if (row.old_cluster, row.new_cluster, row.placer) == group]
        fitting = [row for row in members if row.old_fits and row.new_fits]
        ratios = (
            geometric_mean(row.old_s / row.new_s for row in fitting),
            geometric_mean(row.old_s / row.single_s for row in fitting),
            geometric_mean(row.new_s / row.single_s for row in fitting),
        )
        cells = ["-" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
        body.append([f"{group[0]} to {group[1]}", group[2], f"{len(fitting)} of {len(members)}", *cells])
    return [head, *body]


def csv_rows(rows: Iterable[PlacementRow]) -> list[tuple[object, ...]]:
    """Rows of `placements.csv`, in the order of `COLUMNS`."""
    return [astuple(row) for row in rows]
