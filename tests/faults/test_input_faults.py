"""Inputs at and beyond the edge: whatever the readers accept can be simulated, placed and learned from."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.commands import evaluate, train
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
    MANY_DEVICES,
    PLACEMENT,
    RECORDS,
    mutated,
    odd_clusters,
    odd_graphs,
    use,
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return read_policy("pretrained").policy()


@pytest.mark.parametrize("name", odd_graphs())
def test_an_odd_graph_is_placed_on_every_odd_cluster(name: str, policy: Policy) -> None:
    for cluster in odd_clusters().values():
        use(odd_graphs()[name], cluster, policy)


@pytest.mark.parametrize("name", ["one op", "parameters only", "no time"])
def test_an_odd_graph_is_placed_on_many_devices(name: str, policy: Policy) -> None:
    use(odd_graphs()[name], MANY_DEVICES, policy)


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
def test_a_changed_record_is_refused_or_can_be_used(policy: Policy, name: str, seed: int) -> None:
    """What is read is written and read again as it is; some of it is placed."""
    changed, again = mutated(RECORDS[name], np.random.default_rng(seed)), "again"
    records, refusal = RECORDS | {name: changed}, ""
    try:
        graph = graph_from_json(records["graph"], "here")
        cluster = cluster_from_json(records["cluster"], "here")
        written = graph_to_json(graph), cluster_to_json(cluster)
        assert graph_to_json(graph_from_json(written[0], again)) == written[0]
        assert cluster_to_json(cluster_from_json(written[1], again)) == written[1]
        if name == "placement":
            placement_from_json(changed, "here").resolve(graph, cluster)
        elif seed % 4 == 0:
            use(graph, cluster, policy)
    except InputError as error:
        refusal = str(error)
    assert refusal.isprintable()


@pytest.mark.parametrize(
    ("message", "of_op", "of_device"),
    [
        ("seconds of 'kind0' of the whole step is inf", {"seconds": {"kind0": 1e308}}, {}),
        ("takes 4.94066e-324 s on 'gpu0'", {"seconds": {"kind0": 5e-324}}, {}),
        ("takes 1e+28 s on 'gpu0'", {"flops": 1e26}, {"flops_per_s": 0.01}),
    ],
)
def test_costs_that_overflow_together_are_refused_before_anything_is_done(
    message: str,
    of_op: dict[str, Any],
    of_device: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ops = [{"name": f"op{at}", "flops": 1e9} | of_op for at in range(4)]
    tensors = [{"producer": at, "bytes": 8, "consumers": [at + 1]} for at in range(3)]
    devices = [device | of_device for device in CLUSTER["devices"]]
    Path("graph.json").write_text(json.dumps(GRAPH | {"ops": ops, "tensors": tensors}))
    Path("cluster.json").write_text(json.dumps(CLUSTER | {"devices": devices}))
    for main, flags in ((evaluate.main, "--placers single heft --out out"), (train.main, "--name run")):
        assert main(["--graphs", "graph.json", "--cluster", "cluster.json", *flags.split()]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert {path.name for path in tmp_path.iterdir()} == {"graph.json", "cluster.json"}


def test_the_units_of_many_strays_and_the_names_of_a_placement_take_linear_time() -> None:
    n = 100_000
    ops = [{"name": "op"}, *({"name": f"w{at}", "type": "parameter"} for at in range(n))]
    graph = build_graph("strays", "", ops, [])
    placement = PLACEMENT | {"graph": "strays", "device_of": {f"w{at}": "gpu0" for at in range(n)}}
    began = time.process_time()
    assert len(graph.units) == 1
    with pytest.raises(PlacementError, match="op 'op' has no device"):
        placement_from_json(placement, "here").resolve(graph, replace(MANY_DEVICES, name=CLUSTER["name"]))
    assert time.process_time() - began < 2
