"""Makes a placer, and runs it on one objective: with its own seed, timed without compiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from zlib import crc32

import numpy as np

from agent.bounds.lower_bound import lower_bound_s
from agent.placers.base import PLACERS, PLACERS_OF, Budget, PlacementResult, Placer, PlacerError
from agent.placing.handover.explain import explain
from agent.policy.serialization import StoredPolicy, read_policy
from envs.cluster.cluster import Cluster
from envs.objective import STEP, Objective
from envs.placements.placement import Placement, spread_unread
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem, simulated_memory
from graphs.op_graph import OpGraph, build_graph
from graphs.system.compiling import Job
from graphs.system.running_time import running_cpu_s, running_s

N_LAYERS = 12
"""Layers of the warm-up graph."""
WARM_UP = Budget(evaluations=4_000)
"""Enough for every placer to get to the last of its searches."""

LOOPS = ("policy-sample", "rollout", "annealing", "heft", "refine", "")
"""Placers that call all kernels of placers between them, the longest to compile first; those of the
bound and of explanations have no placer."""


def make_placer(name: str, policy: StoredPolicy | None, order: str, kind: str = STEP) -> Placer:
    """Look a placer up, or make a learned one of a policy and the order in which it visits ops.

    Args:
        kind: of the objective.

    Raises:
        PlacerError: an unknown name, or a learned placer without a policy.
    """
    entry = PLACERS_OF[kind][name]
    if not entry.is_learned:
        return entry
    if policy is None:
        raise PlacerError(f"placer '{name}' needs a policy; open one")
    return entry.with_policy(policy.actor, order)


def open_policy(path: str) -> StoredPolicy:
    """Reads a policy.

    Args:
        path: a run's folder, or `pretrained`.

    Raises:
        PolicyFileError: it cannot be loaded.
    """
    opened = read_policy(path)
    _ = opened.actor
    return opened


class TrialRunner:
    """Runs placers, and remembers which of them have imported what they need."""

    def __init__(self) -> None:
        self._warm: set[str] = set()

    def place(
        self, placer: Placer, objective: Objective, budget: Budget, *, order: str, seed: int
    ) -> PlacementResult:
        """Let a placer make an objective short; the placement depends on nothing but the arguments.

        Args:
            order: that the placer's policy visits ops in; empty for other placers.
            seed: of the placer's randomness, beside the names of graph, placer and order.

        Returns:
            The placement of the ops; parameters that no op reads are spread over the devices, unless the
            placer is `single`. The clock of its budget and of `wall_s` starts when the placer has imported
            what it needs, and stands still while kernels are compiled or loaded.
        """
        problem, name = objective.problem, f"{objective.problem.graph.name}/{placer.name}"
        if objective.kind != STEP:
            return placer.place(objective, budget, np.random.default_rng([seed, crc32(name.encode())]))
        self._warm_up(placer, problem.cluster)
        result = placer.place(
            objective, budget, np.random.default_rng([seed, crc32(f"{name}/{order}".encode())])
        )
        if placer.name == "single" or not len(problem.graph.unread):
            return result
        peak_bytes, device_of = result.step_time.peak_bytes, result.placement.device_of
        spread = Placement(spread_unread(problem.graph, problem.cluster, device_of, peak_bytes))
        other = replace(result, placement=spread)
        return other if other.feasible or not result.feasible else result

    def score(self, objective: Objective, placement: Placement) -> PlacementResult:
        """Time a given placement: one evaluation.

        Raises:
            PipelineError: the schedule cannot run it.
        """
        began, cpu_began = running_s(), running_cpu_s()
        objective.simulate(placement)
        return PlacementResult(objective, placement, 1, running_s() - began, running_cpu_s() - cpu_began)

    def _warm_up(self, placer: Placer, cluster: Cluster) -> None:
        if placer.name not in self._warm:
            problem = Problem(warm_up_graph(), warm_up_cluster(cluster))
            placer.place(problem, WARM_UP, np.random.default_rng(0))
            self._warm.add(placer.name)


def compile_jobs(
    placers: Iterable[str], clusters: Iterable[Cluster], **others: Callable[[Cluster], object]
) -> dict[str, Job]:
    """Returns what `compile_ahead` is to run before placers place steps on clusters.

    Args:
        others: call other kernels, on a cluster with ordinary times; by what they do.
    """
    entries = [PLACERS[name] for name in placers if name in PLACERS]
    names = (
        LOOPS
        if any(entry.is_search for entry in entries)
        else ("heft", *(entry.name for entry in entries), "")
    )
    jobs: dict[str, Job] = {}
    for cluster in map(warm_up_cluster, clusters):
        arrays = Problem(warm_up_graph(), cluster).arrays
        rules = f"detailed: {arrays.detailed is not None}, slows: {arrays.slows is not None}"
        jobs |= {f"{name}; {rules}": partial(other, cluster) for name, other in others.items()}
        for name in names:
            if name in LOOPS and (name != LOOPS[0] or any(entry.is_learned for entry in entries)):
                jobs.setdefault(f"{name}; {rules}", partial(_place_once, name, cluster))
    return jobs


def _place_once(name: str, cluster: Cluster) -> None:
    """Makes a trial of a placer, or without one what explanations, figures and bounds call."""
    problem = Problem(warm_up_graph(), cluster)
    if not name:
        lower_bound_s(problem)
        device_of = np.zeros(problem.graph.n_ops, dtype=np.int64)
        explain(problem, device_of, simulate_problem(problem, device_of))
        simulated_memory(problem, device_of, 1)
        return
    policy = open_policy("pretrained") if PLACERS[name].is_learned else None
    TrialRunner().place(make_placer(name, policy, "topo"), Objective(problem), WARM_UP, order="topo", seed=0)


def warm_up_cluster(cluster: Cluster) -> Cluster:
    """Make a cluster by the rules of another, with its memory, on which ops take ordinary times."""
    devices = tuple(
        replace(device, kind="warm-up", flops_per_s=1e12, bytes_per_s=1e12, launch_s=1e-6, peaks={})
        for device in cluster.devices
    )
    shape = (cluster.n_devices, cluster.n_devices)
    return replace(cluster, devices=devices, bytes_per_s=np.full(shape, 1e10), latency_s=np.full(shape, 1e-6))


def warm_up_graph() -> OpGraph:
    """Make the graph that placers are warmed up on: layers with weights, forward and backward."""
    ops: list[dict[str, object]] = []
    tensors: list[tuple[int, float, list[int]]] = []
    for layer in range(N_LAYERS):
        ops.append({"name": f"weight{layer}", "type": "parameter", "resident_bytes": 1e3, "colocate": layer})
        ops.append({"name": f"forward{layer}", "flops": 1e9, "colocate": layer})
    for layer in reversed(range(N_LAYERS)):
        ops.append({"name": f"backward{layer}", "flops": 2e9, "phase": "backward"})
    for layer in range(N_LAYERS):
        weight, forward, backward = 2 * layer, 2 * layer + 1, 3 * N_LAYERS - 1 - layer
        following = [forward + 2] if layer + 1 < N_LAYERS else []
        tensors.append((weight, 1e3, [forward, backward]))
        tensors.append((forward, 1e6, [*following, backward]))
        if layer:
            tensors.append((backward, 1e6, [backward + 1]))
    return build_graph("warm-up", "", ops, tensors)
