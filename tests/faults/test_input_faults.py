"""Inputs at and beyond the edge: whatever the readers accept can be simulated, placed and learned from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.policy.policy import Policy
from agent.policy.serialization import read_policy
from envs.cluster.cluster import Cluster
from envs.cluster.files import cluster_from_json, cluster_to_json
from envs.placements.files import placement_from_json
from envs.placements.placement import PlacementError
from graphs.io.graph_files import graph_from_json, graph_to_json
from graphs.op_graph import OpGraph, build_graph
from graphs.system.errors import InputError
from tests.envs.random_problems import problems
from tests.faults.input_cases import (
    CLUSTER,
    GRAPH,
    PLACEMENT,
    RECORDS,
    many_devices,
    mutated,
    odd_clusters,
    odd_graphs,
    read_mutation,
    use,
)

MUTATIONS = 150


@pytest.fixture(scope="module")
def policy() -> Policy:
    return read_policy("pretrained").policy()


@pytest.mark.parametrize("name", odd_graphs())
def test_an_odd_graph_is_placed_on_every_odd_cluster(name: str, policy: Policy) -> None:
    for cluster in odd_clusters().values():
        use(odd_graphs()[name], cluster, policy)


@pytest.mark.parametrize("name", ["one op", "parameters only", "no time"])
def test_an_odd_graph_is_placed_on_many_devices(name: str, policy: Policy) -> None:
    use(odd_graphs()[name], many_devices(), policy)


@settings(max_examples=40)
@given(
    problems(max_ops=12, max_devices=4),
    st.tuples(*[st.sampled_from([0.0, 1e-9, 1.0, 1e6])] * 4),
    st.sampled_from(["", "parameter", "input"]),
    st.sampled_from(["forward", "backward", "optimizer"]),
)
def test_random_structures_of_all_scales_are_placed(
    policy: Policy,
    problem: tuple[OpGraph, Cluster, np.ndarray],
    scales: tuple[float, float, float, float],
    op_type: str,
    phase: str,
) -> None:
    graph, cluster, _ = problem
    of_time, of_size, of_memory, of_gap = scales
    is_read = np.isin(np.arange(graph.n_ops), graph.consumers.items)
    graph = replace(
        graph,
        op_types=tuple("mm" if read else op_type for read in is_read),
        phases=(phase,) * graph.n_ops,
        seconds={kind: seconds * of_time for kind, seconds in graph.seconds.items()},
        tensor_bytes=graph.tensor_bytes * of_size,
        resident_bytes=graph.resident_bytes * of_memory,
    )
    cluster = replace(cluster, latency_s=cluster.latency_s * of_gap, op_gap_s=cluster.op_gap_s * of_gap)
    use(graph, cluster, policy, ("single", "heft", "m-etf", "annealing", "policy", "policy-refine"))


@settings(max_examples=500)
@given(st.sampled_from(sorted(RECORDS)), st.integers(0, 2**32))
def test_no_changed_record_crashes_its_reader(name: str, seed: int) -> None:
    """What is read is written and read again as it is."""
    changed, again = mutated(RECORDS[name], np.random.default_rng(seed)), "again"
    with suppress(InputError):
        if name == "graph":
            written = graph_to_json(graph_from_json(changed, "here"))
            assert graph_to_json(graph_from_json(written, again)) == written
        elif name == "cluster":
            written = cluster_to_json(cluster_from_json(changed, "here"))
            assert cluster_to_json(cluster_from_json(written, again)) == written
        else:
            graph, cluster = graph_from_json(GRAPH, "graph"), cluster_from_json(CLUSTER, "cluster")
            placement_from_json(changed, "here").resolve(graph, cluster)


@pytest.mark.parametrize("first", range(0, MUTATIONS, 50))
def test_a_damaged_file_is_refused_or_can_be_used(first: int, tmp_path: Path, policy: Policy) -> None:
    refused = []
    for seed in range(first, first + 50):
        try:
            graph, cluster = read_mutation(seed, tmp_path)
            use(graph, cluster, policy)
        except InputError as error:
            refused.append(str(error))
    assert all(map(str.isprintable, refused))
    assert 5 <= len(refused) <= 45


OVERFLOWS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "launch": ("launch_s is 1e+308; use", {}, {"launch_s": 1e308}, {}),
    "op-gap": ("op_gap_s is 1e+308; use", {}, {}, {"op_gap_s": 1e308}),
    "transfer-gap": ("transfer_gap_s is 1e+308; use", {}, {}, {"transfer_gap_s": 1e308}),
    "seconds": ("seconds of 'k80' of the whole step is inf", {"seconds": {"k80": 1e308}}, {}, {}),
    "no-seconds": ("takes 4.94066e-324 s on 'gpu0'", {"seconds": {"k80": 5e-324}}, {}, {}),
    "flops": ("flops of the whole step is inf", {"flops": 1e308}, {}, {}),
    "work": ("takes 1e+28 s on 'gpu0'", {"flops": 1e26}, {"flops_per_s": 0.01}, {}),
}
"""For each fault what the message says, and the fields of each op, each device and the cluster."""
MAIN = """
import json, sys
from agent.commands import evaluate, train
for flags in json.loads(sys.argv[1]):
    command = train.main if "--name" in flags else evaluate.main
    sys.stderr.flush()
    print("exit code", command(flags), file=sys.stderr)
"""


def test_costs_that_overflow_together_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    commands = []
    for name, (_, of_op, of_device, of_cluster) in OVERFLOWS.items():
        folder = tmp_path / name
        folder.mkdir()
        ops = [{"name": f"op{at}", "flops": 1e9} | of_op for at in range(4)]
        tensors = [{"producer": at, "bytes": 8, "consumers": [at + 1]} for at in range(3)]
        devices = [device | of_device for device in CLUSTER["devices"]]
        graph, cluster = str(folder / "graph.json"), str(folder / "cluster.json")
        Path(graph).write_text(json.dumps(GRAPH | {"ops": ops, "tensors": tensors}))
        Path(cluster).write_text(json.dumps(CLUSTER | {"devices": devices} | of_cluster))
        given = ["--graphs", graph, "--cluster", cluster]
        commands += [
            [*given, "--placers", "single", "heft", "--budget", "20", "--out", str(folder / "out")],
            [*given, "--timesteps", "8", "--name", name],
        ]
    result = subprocess.run(
        [sys.executable, "-c", MAIN, json.dumps(commands)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Compiling")]
    assert lines[1::2] == ["exit code 2"] * len(commands), result.stderr
    messages = [message for message, *_ in OVERFLOWS.values() for _ in range(2)]
    assert [message for message, line in zip(messages, lines[::2], strict=True) if message not in line] == []
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == sorted(OVERFLOWS)


def test_the_units_of_many_strays_and_the_names_of_a_placement_take_linear_time() -> None:
    n = 100_000
    ops = [{"name": "op"}, *({"name": f"w{at}", "type": "parameter"} for at in range(n))]
    graph = build_graph("strays", "", ops, [])
    placement = PLACEMENT | {"graph": "strays", "device_of": {f"w{at}": "gpu0" for at in range(n)}}
    began = time.process_time()
    assert len(graph.units) == 1
    with pytest.raises(PlacementError, match="op 'op' has no device"):
        placement_from_json(placement, "here").resolve(graph, replace(many_devices(), name="c"))
    assert time.process_time() - began < 2
