"""Odd and damaged inputs, and all that is done with an input that the readers accept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from agent.bounds.lower_bound import lower_bound_s
from agent.placers.base import PLACERS, Budget, Placer, names_of
from agent.policy.policy import Policy
from envs.cluster.cluster import SCHEDULES, Cluster, Device
from envs.cluster.files import cluster_from_json, cluster_to_json
from envs.objective import simulate
from envs.placement import MDPS
from envs.placement.episodes import EpisodeBatch, EpisodeSettings, MdpError
from envs.placement.observation.features import FEATURE_BOUND
from envs.placements.placement import Placement, check_placement, single_device
from envs.problem import InfeasibleError, Problem
from envs.simulator.data_parallel import simulate_data_parallel
from graphs.io.graph_files import graph_from_json, graph_to_json
from graphs.op_graph import OpGraph, build_graph
from tests.agent.placement_cases import make_cluster, training_graph

BUDGET = Budget(evaluations=30)

Op = dict[str, Any]


def chain(n: int = 4, size: float = 8.0, **fields: Any) -> OpGraph:
    """Builds ops with equal fields, each of which reads what the one before makes."""
    ops = [{"name": f"op{at}"} | fields for at in range(n)]
    return build_graph("chain", "", ops, [(at, size, [at + 1]) for at in range(n - 1)])


def apart(*ops: Op) -> OpGraph:
    """Builds ops without tensors."""
    return build_graph("apart", "", [{"name": f"op{at}"} | op for at, op in enumerate(ops)], [])


def second(seconds: float = 1.0) -> Op:
    """Returns the measured time of an op, as a field."""
    return {"seconds": {"gpu": seconds}}


def odd_graphs() -> dict[str, OpGraph]:
    """Builds a graph for every structure or amount at the edge of what the rules allow."""
    parameter, update = {"type": "parameter", "resident_bytes": 5}, {"phase": "optimizer"}
    return {
        "one op": apart(second()),
        "one op without time": apart({}),
        "parameters only": apart(*[parameter] * 3),
        "an input that nothing reads": build_graph(
            "in", "", [{"name": "x", "type": "input"}], [(0, 4.0, [])]
        ),
        "no tensors": apart(*[second()] * 4),
        "no time": chain(),
        "no time and no bytes": chain(size=0.0),
        "no bytes": chain(size=0.0, **second()),
        "tensors that nothing reads": build_graph(
            "unread", "", [{"name": at} | second() for at in "abcd"], [(at, 8.0, []) for at in range(4)]
        ),
        "one colocation group": chain(colocate=0, **second()),
        "optimizer only": chain(**update, **second()),
        "backward only": chain(phase="backward", **second()),
        "a parameter and its update": apart(parameter | {"colocate": 0}, update | {"colocate": 0} | second()),
        "disconnected": build_graph(
            "two", "", [{"name": at} | second() for at in "abcd"], [(0, 8.0, [1]), (2, 8.0, [3])]
        ),
        "longest times": chain(size=1e17, resident_bytes=1e20, **second(2e8)),
        "shortest times": chain(size=1e-5, resident_bytes=5e-324, **second(1e-15)),
        "shortest times, longest transfers": chain(size=1e18, **second(1e-15)),
        "times of all lengths": apart(*[second(10.0**at) for at in range(-15, 9, 4)]),
        "hardly any bytes": chain(size=1e-5, bytes_moved=5e-324, flops=5e-324),
    }


def cluster(
    n: int, memory_bytes: float = 1e21, latency_s: float = 0.0, overlap_slowdown: float = 1.0, **rules: Any
) -> Cluster:
    """Builds a cluster of equal devices of kind `gpu`."""
    device = Device("gpu", "gpu", memory_bytes, 1e12, 1e11, 0.0, overlap_slowdown=overlap_slowdown)
    devices = tuple(replace(device, name=f"gpu{at}") for at in range(n))
    return Cluster("odd", devices, np.full((n, n), 1e10), np.full((n, n), latency_s), **rules)


def odd_clusters() -> dict[str, Cluster]:
    """Builds clusters at the edge of what the rules allow, of a few devices."""
    return {
        "one device": cluster(1),
        "two": cluster(2),
        "fifo": cluster(2, schedule="fifo", transfer_per="tensor"),
        "no memory": cluster(2, memory_bytes=1.0),
        "longest gaps": cluster(3, latency_s=1e9, sharing="none", op_gap_s=1e9, transfer_gap_s=1e9),
        "slowest host": cluster(3, issue_s=1e9, copies="eager", op_gap_s=1e9),
        "a graph": cluster(3, issue_s=1e9, issue_per="step"),
        "slowest beside copies": cluster(3, overlap_slowdown=1e3),
        "fastest host": cluster(3, issue_s=1e-15, n_half_bytes=1e-5, transfer_per="tensor"),
        "shortest gaps": cluster(
            5, latency_s=1e-15, schedule="fifo", sharing="pair", op_gap_s=1e-15, transfer_gap_s=1e-15
        ),
    }


MANY_DEVICES = cluster(100, memory_bytes=1e9, latency_s=1e-6)


def use(graph: OpGraph, cluster: Cluster, policy: Policy, placers: tuple[str, ...] = ()) -> None:
    """Does with an input all that the command lines do, and checks that every result is finite.

    Args:
        placers: names of those to place with; all by default.

    Raises:
        InputError: the graph and the cluster do not belong together.
    """
    json.dumps([graph_to_json(graph), cluster_to_json(cluster)], allow_nan=False)
    assert graph_to_json(graph_from_json(graph_to_json(graph), "again")) == graph_to_json(graph)
    assert cluster_to_json(cluster_from_json(cluster_to_json(cluster), "again")) == cluster_to_json(cluster)
    problem = Problem(graph, cluster)
    for schedule in SCHEDULES:
        devices = tuple(replace(device, overlap_slowdown=1.0) for device in cluster.devices)
        host = {"issue_s": 0.0, "issue_per": "op", "copies": "stream", "devices": devices}
        ruled = replace(cluster, schedule=schedule, **(host if schedule == "fifo" else {}))
        spread = (np.arange(len(graph.units)) % cluster.n_devices)[graph.unit_of]
        for placement in (single_device(graph, 0), Placement(spread)):
            step = simulate(graph, ruled, placement)
            assert np.isfinite([step.total_s, step.transfer_bytes, *step.busy_s, *step.peak_bytes]).all()
            assert np.isfinite([step.start_s, step.finish_s]).all()
    assert 0 <= lower_bound_s(problem) < np.inf
    assert 0 <= simulate_data_parallel(problem).seconds_per_batch < np.inf
    for placer in map(PLACERS.__getitem__, placers or names_of("step")):
        check_result(problem, placer.with_policy(policy, "topo") if placer.is_learned else placer)
    for mdp in MDPS:
        try:
            play(problem, mdp)
        except InfeasibleError:
            assert not problem.is_feasible
        except MdpError:
            assert not graph.is_compute.any()


def check_result(problem: Problem, placer: Placer) -> None:
    """Places, and checks the placement and its time."""
    found = placer.place(problem, BUDGET, np.random.default_rng(0))
    check_placement(problem.graph, problem.cluster, found.placement)
    assert np.isfinite(found.step_time.total_s)
    assert np.isfinite(found.step_time.total_s / problem.scale_s)


def play(problem: Problem, mdp: str) -> None:
    """Plays one episode with random devices, and checks what a policy would see and get."""
    batch, rng, done = EpisodeBatch([problem], 1, EpisodeSettings(mdp=mdp)), np.random.default_rng(0), False
    batch.begin(0, 0, 0, rng)
    while not done:
        assert np.abs(batch.observation.devices).max() <= FEATURE_BOUND  # NaN is not
        rewards, ended = batch.step(rng.choice(np.flatnonzero(batch.observation.mask[0]), 1))
        assert np.isfinite(rewards.astype(np.float32)).all()
        done = bool(ended[0])


GRAPH: dict[str, Any] = graph_to_json(training_graph(1, 1))
"""A record of an input, a weight, and four ops that compute; two have measured times."""
for op, module in ((2, "a.b"), (4, "a")):
    GRAPH["ops"][op] |= {"module": module, "seconds": {"kind0": 1e-4, "kind1": 1e-4}}
CLUSTER: dict[str, Any] = cluster_to_json(
    make_cluster(2, schedule="fifo", sharing="pair", transfer_per="tensor", op_gap_s=1e-6)
)
PLACEMENT: dict[str, Any] = {
    "format": "placewalk.placement/1",
    "graph": GRAPH["name"],
    "cluster": CLUSTER["name"],
    "device_of": {op["name"]: f"gpu{op['name'] == 'loss':d}" for op in GRAPH["ops"]},
}
RECORDS = {"graph": GRAPH, "cluster": CLUSTER, "placement": PLACEMENT}

NUMBERS = [0, 1, 2, 3, 5, 1e-15, 1e-3, 1e9, 1e15, 1e21, 1e27, 1e308, -1e308, -1, -0.0, 5e-324, 2**53, 10**400]
TEXTS = [
    "",
    "a\nb",
    "\x1b[2J",
    "\ud800",
    "é",
    "program",
    "input",
    "parameter",
    "backward",
    "optimizer",
    "gpu0",
]
OTHERS = [*NUMBERS, *TEXTS, True, None, [], {}, [[]], [1, 1], ["gpu0"]]


def mutated(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns a copy of a record with one to three values or keys changed."""
    copy: dict[str, Any] = json.loads(json.dumps(record))
    for _ in range(1 if rng.random() < 0.7 else 2):
        places = [*_places_in(copy)] or [({"": 0}, "")]
        holder, key = places[int(rng.integers(len(places)))]
        kind = rng.random()
        if kind < 0.1:
            del holder[key]
        elif kind < 0.15 and isinstance(holder, list):
            holder.append(holder[key])
        elif kind < 0.2 and isinstance(holder, dict):
            holder[f"{key}x"] = holder[key]
        else:
            of_its_type = TEXTS if isinstance(holder[key], str) else NUMBERS
            values: list[Any] = of_its_type if rng.random() < 0.8 else OTHERS
            holder[key] = values[int(rng.integers(len(values)))]
    return copy


def _places_in(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yields all values anywhere in a record: the holder of each, and its key in there."""
    for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places_in(holder[key])
