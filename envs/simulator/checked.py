"""Simulates one training step of a graph on a cluster, once the placement is checked."""

from __future__ import annotations

from envs.cluster.cluster import Cluster
from envs.placements.placement import Placement, check_placement
from envs.problem import Problem
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.op_graph import OpGraph


def simulate(graph: OpGraph, cluster: Cluster, placement: Placement) -> StepTime:
    """Simulates one training step under a placement.

    Args:
        placement: device index of each op, int (n_ops,); none may be -1.

    Returns:
        Seconds and bytes; `total_s` is the finish of the last op.

    Raises:
        PlacementError: wrong length, an unplaced op, a device the cluster lacks, or a split placement unit.

    Source: Addanki et al. 2019, section 4; departures are in docs/explanation/step.md.
    """
    check_placement(graph, cluster, placement)
    return simulate_problem(Problem(graph, cluster), placement.device_of)
