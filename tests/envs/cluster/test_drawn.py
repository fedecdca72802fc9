"""Clusters drawn at random: valid, of every layout, and the same for a seed."""

from __future__ import annotations

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, ClusterError
from envs.cluster.drawn import LAYOUTS, draw_cluster, wires
from envs.cluster.files import cluster_to_json
from envs.cluster.kinds import KINDS
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family


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


def test_clusters_are_drawn_in_trainings_alone() -> None:
    with pytest.raises(
        ClusterError, match=r"^cluster 'random': only trainings on simulated steps draw clusters"
    ):
        get_cluster("random")
