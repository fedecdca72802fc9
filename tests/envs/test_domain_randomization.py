"""Domain randomization: clusters drawn at random, and variations of a problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.cluster.cluster import Cluster
from envs.cluster.files import cluster_to_json
from envs.cluster.host import EAGER_ISSUE_S
from envs.cluster.kinds import KINDS
from envs.cluster.presets import get_cluster
from envs.domain_randomization import LAYOUTS, SCARCE_MEMORY, draw_cluster, randomize_domain, resize, wires
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.limits import MAX_SECONDS, MIN_SECONDS
from graphs.op_graph import build_graph
from tests.envs.random_problems import random_graph


def drawn(seed: int) -> Cluster:
    return draw_cluster(np.random.default_rng(seed))


CLUSTERS = [drawn(seed) for seed in range(300)]


def of_layout(layout: str) -> list[Cluster]:
    return [cluster for cluster in CLUSTERS if cluster.name == f"random-{layout}-{cluster.n_devices}"]


def test_a_seed_draws_the_same_cluster_and_seeds_differ() -> None:
    again = [cluster_to_json(drawn(seed)) for seed in range(20)]
    assert again == [cluster_to_json(cluster) for cluster in CLUSTERS[:20]]
    assert len({str(each) for each in again}) == 20


def test_every_number_of_devices_layout_kind_and_wire_is_drawn() -> None:
    assert {cluster.n_devices for cluster in CLUSTERS} == set(range(2, 17))
    assert sum(len(of_layout(layout)) for layout in LAYOUTS) == len(CLUSTERS)
    assert all(len(of_layout(layout)) > 40 for layout in LAYOUTS)
    kinds = {device.kind for cluster in CLUSTERS for device in cluster.devices}
    assert kinds == {*KINDS, "k80", "v100", "a100", "rtx3060", "h100", "xeon"}
    speeds = {
        speed for cluster in CLUSTERS for speed in cluster.bytes_per_s[~np.eye(cluster.n_devices, dtype=bool)]
    }
    assert speeds == {wire.bytes_per_s for some in wires().values() for wire in some}
    assert {cluster.sharing for cluster in CLUSTERS} == {"pair", "egress"}
    issue_s = np.array([cluster.issue_s for cluster in CLUSTERS if cluster.issue_s])
    assert 100 < len(issue_s) < 200
    assert 0.8 < np.median(issue_s) / EAGER_ISSUE_S < 1.25


def test_gpus_are_equal_or_of_two_kinds_and_a_host_is_one_more_device() -> None:
    n_kinds = [len({each.kind for each in cluster.devices if each.kind != "xeon"}) for cluster in CLUSTERS]
    assert set(n_kinds) == {1, 2}
    assert 40 < n_kinds.count(2) < 150
    has_host = [cluster for cluster in CLUSTERS if cluster.devices[-1].kind == "xeon"]
    assert has_host == of_layout("host")


def test_two_nodes_have_slow_links_between_and_others_one_kind() -> None:
    for cluster in CLUSTERS:
        latencies = cluster.latency_s[~np.eye(cluster.n_devices, dtype=bool)]
        if cluster in of_layout("nodes"):
            near = cluster.latency_s == cluster.latency_s[0, 0]
            split = int(near[0].sum())
            assert 1 <= split < cluster.n_devices
            node = np.arange(cluster.n_devices) >= split
            assert (near == (node[:, None] == node[None, :])).all()
        else:
            assert len(set(latencies.tolist())) == 1


def test_memory_is_scarce_at_times() -> None:
    whole = {kind: each.device().memory_bytes for kind, each in KINDS.items()}
    shares = [
        cluster.devices[0].memory_bytes / whole[cluster.devices[0].kind]
        for cluster in CLUSTERS
        if cluster.devices[0].kind in whole
    ]
    scarce = [share for share in shares if share < 1]
    assert 0.15 < len(scarce) / len(shares) < 0.45
    assert 0.1 <= min(scarce) < max(scarce) <= 0.5


def test_every_cluster_has_room_for_some_graph() -> None:
    graph = min(load_family("gnn"), key=lambda graph: graph.n_ops)
    assert all(Problem(graph, cluster).is_feasible for cluster in CLUSTERS[:60])


@pytest.mark.parametrize("name", ["2xk80", "8xa100", "2x4xa100", "gpu+cpu"])
def test_variations_keep_the_rules_of_the_cluster_and_leave_room(name):
    graph, given = random_graph(np.random.default_rng(0), 30), get_cluster(name)
    n_half = np.arange(float(given.n_devices**2)).reshape(given.n_devices, -1)
    given = replace(given, issue_s=1e-5, copies="eager", n_half_bytes=n_half)
    names = [device.name for device in given.devices]
    for seed in range(50):
        problem = randomize_domain(Problem(graph, given), np.random.default_rng(seed))
        cluster = problem.cluster
        assert problem.is_feasible
        assert min(2, given.n_devices) <= cluster.n_devices <= given.n_devices
        for rule in ("schedule", "sharing", "issue_s", "copies"):
            assert getattr(cluster, rule) == getattr(given, rule)
        kept = [names.index(device.name) for device in cluster.devices]
        np.testing.assert_array_equal(cluster.n_half_matrix, n_half[np.ix_(kept, kept)])
        # A slower link stays slower.
        off_diagonal = ~np.eye(len(kept), dtype=bool)
        factors = (cluster.bytes_per_s / given.bytes_per_s[np.ix_(kept, kept)])[off_diagonal]
        assert factors == pytest.approx(factors[:1].repeat(len(factors)))


def test_what_lies_at_a_bound_stays_within_it():
    ops = [
        {"name": "mm", "flops": 0.9 * MAX_SECONDS * 156e12},
        {"name": "add", "seconds": {"a100": MIN_SECONDS}},
    ]
    graph, given = build_graph("g", "", ops, []), get_cluster("8xa100")
    kept = [
        randomize_domain(Problem(graph, given), np.random.default_rng(seed)).graph is graph
        for seed in range(30)
    ]
    assert any(kept)
    assert not all(kept)


def test_scarce_memory_is_scarce():
    graph, given = random_graph(np.random.default_rng(0), 30), get_cluster("4xv100")
    ratios = []
    for seed in range(100):
        problem = randomize_domain(Problem(graph, given), np.random.default_rng(seed))
        if problem.cluster.memory_bytes[0] < given.memory_bytes[0]:
            ratios.append(problem.cluster.memory_bytes.sum() / problem.footprint_bytes.sum())
    assert 10 <= len(ratios) <= 60
    assert all(SCARCE_MEMORY[0] <= ratio * (1 + 1e-9) and ratio <= SCARCE_MEMORY[1] for ratio in ratios)


def test_a_resized_graph_has_the_same_ops_and_each_module_its_own_size():
    given = load_family("gpt")[0]
    sized = resize(given, np.random.default_rng(0))
    assert (sized.op_names, sized.modules) == (given.op_names, given.modules)
    assert (sized.edges == given.edges).all()
    modules = np.array(given.modules)
    updates = np.array([phase == "optimizer" for phase in given.phases])
    for module in sorted(set(given.modules)):
        own = (modules == module) & ~updates & (given.flops > 0)
        factors = sized.flops[own] / given.flops[own]
        assert factors == pytest.approx(factors[:1].repeat(len(factors)))


def test_the_batch_size_does_not_change_weights_and_gradients():
    given = load_family("gpt")[0]
    sized = resize(given, np.random.default_rng(1))
    parameter = np.array([kind == "parameter" for kind in given.op_types])
    weights, kept = parameter[given.tensor_producer], given.resident_bytes > 0
    by_module = dict(
        zip(
            np.array(given.modules)[kept],
            (sized.resident_bytes / np.maximum(given.resident_bytes, 1))[kept],
            strict=True,
        )
    )
    for tensor in np.flatnonzero(weights | (given.tensor_owner >= 0)):
        grown = sized.tensor_bytes[tensor] / given.tensor_bytes[tensor]
        assert grown == pytest.approx(by_module.get(given.modules[given.tensor_producer[tensor]], grown))
