"""The effect of other costs: placements found under old costs against those found under new ones.

A cluster stands for its costs: two clusters with as many devices describe the same machine, once with the old
and once with the new times of ops and links.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent.evaluation.comparison.ratios import geometric_mean
from agent.evaluation.results import DATA_PARALLEL
from agent.evaluation.run import placement_path
from agent.evaluation.spec import EvaluationSpec
from agent.experiments.fidelity.models import GraphCache
from agent.experiments.launcher import evaluated
from agent.experiments.rows import axis, number_cell
from envs.cluster.cluster import Cluster, ClusterError
from envs.placement.files import read_placement
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import capture_draw
from graphs.families import FAMILIES
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


def held_out_graphs(
    seen: Container[str], per_family: int, cache: GraphCache, families: Sequence[str] = ()
) -> Iterator[OpGraph]:
    """Captures graphs of the benchmark set with the dtypes and products that calibrated costs need.

    Args:
        seen: names of graphs that are left out.
        per_family: number of graphs of each family, the first of the others.
        families: of graphs; none for all.
    """
    for family in families or FAMILIES:
        names = {f"{family}-{draw:02d}": draw for draw in range(FAMILIES[family])}
        for name in [name for name in names if name not in seen][:per_family]:
            yield cache.graph(name, partial(capture_draw, family, names[name], detailed=True))


def compare_placements(
    pairs: Sequence[tuple[Cluster, Cluster]],
    spec: EvaluationSpec,
    folder: Path,
    jobs: int = 1,
) -> list[PlacementRow]:
    """Places graphs under both costs, and times both placements under the new ones.

    Args:
        pairs: old and new clusters whose devices correspond by their index.
        spec: the graphs, placers and budget; its clusters are those of the pairs.
        folder: of the evaluation that finds the placements; goes on with one that was stopped.
        jobs: processes.

    Raises:
        ClusterError: clusters of a pair have different numbers of devices.
        EvaluationError, UnfinishedError: as `evaluated`.
    """
    for old, new in pairs:
        if old.n_devices != new.n_devices:
            raise ClusterError(
                f"clusters '{old.name}' and '{new.name}' have {old.n_devices} and {new.n_devices} devices; "
                "compare clusters of as many"
            )
    trials = evaluated(spec, folder, jobs)
    trial_of = {(trial.graph, trial.cluster, trial.placer): trial for trial in trials}
    rows = []
    for old, new in pairs:
        for graph in spec.graphs:
            problem = Problem(graph, new)
            for placer in (name for name in spec.placers if name != DATA_PARALLEL):
                placements = [
                    read_placement(
                        placement_path(folder, trial_of[graph.name, cluster.name, placer]), graph, cluster
                    )
                    for cluster in (old, new)
                ]
                old_step, new_step = (simulate_problem(problem, each.device_of) for each in placements)
                rows.append(
                    PlacementRow(
                        old.name,
                        new.name,
                        placer,
                        graph.family,
                        graph.name,
                        old_s=old_step.total_s,
                        new_s=new_step.total_s,
                        old_fits=old_step.fits,
                        new_fits=new_step.fits,
                        single_s=float(problem.single_device_s.min()),
                    )
                )
    return rows


def placements_table(rows: Sequence[PlacementRow]) -> list[list[str]]:
    """Cells of a table: a head and a row per pair of clusters and placer, of graphs where both fit."""
    head = ["clusters", "placer", "graphs", "old / new", "old / single device", "new / single device"]
    body = []
    for group in axis((row.old_cluster, row.new_cluster, row.placer) for row in rows):
        members = [row for row in rows if (row.old_cluster, row.new_cluster, row.placer) == group]
        fitting = [row for row in members if row.old_fits and row.new_fits]
        ratios = (
            geometric_mean(row.old_s / row.new_s for row in fitting),
            geometric_mean(row.old_s / row.single_s for row in fitting),
            geometric_mean(row.new_s / row.single_s for row in fitting),
        )
        cells = [number_cell(ratio, "-") for ratio in ratios]
        body.append([f"{group[0]} to {group[1]}", group[2], f"{len(fitting)} of {len(members)}", *cells])
    return [head, *body]
