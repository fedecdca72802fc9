"""Hosts of GPUs: eager PyTorch, which issues a step op by op, a captured CUDA graph, or none.

Sources:
    Eager: the time per op of a small training step on the host of an H100, with autograd and Adam (page
        `one_gpu`). It is that of an op of our graphs, which may launch several kernels, or none of its own.
        A multiplication forward on the processor alone took 7 us with autograd (pytorch/pytorch#41383, 2020).
    Graph: a guess above the 2.5 us and 1 ns per kernel of the driver's call since CUDA 12.6 (NVIDIA Technical
        Blog, "Constant Time Launch for Straight-Line CUDA Graphs", 2024), as torch replays it from Python.
"""

from __future__ import annotations

from dataclasses import replace

from envs.cluster.cluster import Cluster, ClusterError
from envs.cluster.kinds import gpus_of

EAGER_ISSUE_S = 26.2e-6
"""Seconds that a host needs to issue an op eagerly."""
GRAPH_ISSUE_S = 1e-5
"""Seconds that a host needs to launch a captured step."""
EAGER, GRAPH, NONE = HOSTS = ("eager", "graph", "none")
"""Names of hosts: an op at a time, all of a step as a captured CUDA graph (also by `torch.compile` in a mode
that captures one), and one that takes no time."""


def with_host(cluster: Cluster, host: str | None) -> Cluster:
    """Returns the cluster with a host thread that issues steps in a way.

    Args:
        host: name from `HOSTS`; `eager` keeps a measured time per op. None = the cluster as it is.

    Raises:
        ClusterError: an unknown name, or a host for a cluster without GPUs or of schedule `fifo`.
    """
    if host is None:
        return cluster
    if host not in HOSTS:
        raise ClusterError(f"host is {host!r}; use one of {', '.join(HOSTS)}")
    if host == NONE:
        return replace(cluster, issue_s=0.0, issue_per="op")
    if cluster.schedule != "program" or gpus_of([cluster]) is None:
        raise ClusterError(
            f"cluster '{cluster.name}': host '{host}' issues ops to GPUs in program order, but it has no "
            f"GPUs or schedule '{cluster.schedule}'; use '{NONE}'"
        )
    if host == GRAPH:
        return replace(cluster, issue_s=GRAPH_ISSUE_S, issue_per="step")
    return replace(cluster, issue_s=eager_issue_s(cluster) or EAGER_ISSUE_S, issue_per="op")


def eager_issue_s(cluster: Cluster) -> float:
    """Returns the seconds that a host needs to issue an op eagerly, counted by the cluster or not.

    Returns:
        0 without GPUs, under schedule `fifo`, and where a CUDA graph issues the step.
    """
    if cluster.issue_per == "step" or cluster.schedule != "program":
        return 0.0
    return cluster.issue_s or (EAGER_ISSUE_S if gpus_of([cluster]) else 0.0)
