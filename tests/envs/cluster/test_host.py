"""Hosts: what each sets of a cluster, and the clusters that have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs.cluster.cluster import Cluster, ClusterError
from envs.cluster.host import EAGER_ISSUE_S, GRAPH_ISSUE_S, HOSTS, eager_issue_s, with_host
from envs.cluster.presets import PRESETS, get_cluster
from envs.costs.calibration import calibration_of
from tests.agent.placement_cases import make_cluster

EAGER, GRAPH, NONE = (EAGER_ISSUE_S, "op"), (GRAPH_ISSUE_S, "step"), (0.0, "op")


def host_of(cluster: Cluster) -> tuple[float, str]:
    return cluster.issue_s, cluster.issue_per


@pytest.mark.parametrize("name", ["4xh100-sxm5", "4xv100", "gpu+cpu", "a100+v100:1"])
def test_a_host_sets_what_it_issues_and_in_which_time(name: str) -> None:
    cluster = get_cluster(name)
    assert with_host(cluster, None) is cluster
    for start in (cluster, with_host(cluster, "graph"), with_host(cluster, "none")):
        assert [host_of(with_host(start, host)) for host in HOSTS] == [EAGER, GRAPH, NONE]
        assert with_host(start, "eager").devices == cluster.devices


def test_an_eager_host_keeps_a_measured_time() -> None:
    measured = make_cluster(issue_s=4e-6)
    assert [host_of(with_host(measured, host)) for host in HOSTS] == [(4e-6, "op"), GRAPH, NONE]


def test_presets_count_an_eager_host_if_all_their_costs_are_calibrated() -> None:
    for name in PRESETS:
        cluster = get_cluster(name)
        calibrated = all(calibration_of(device.kind) is not None for device in cluster.devices)
        assert host_of(cluster) == (EAGER if calibrated else NONE), name


def test_what_has_no_host_is_refused_one() -> None:
    processors = replace(make_cluster(1), devices=(replace(make_cluster(1).devices[0], kind="cpu"),))
    for cluster in (processors, get_cluster("placeto-k80")):
        assert eager_issue_s(cluster) == 0
        assert host_of(with_host(cluster, "none")) == NONE
        for host in ("eager", "graph"):
            with pytest.raises(ClusterError, match=f"cluster '{cluster.name}': host '{host}' .* use 'none'"):
                with_host(cluster, host)
    with pytest.raises(ClusterError, match="host is 'fast'; use one of eager, graph, none"):
        with_host(get_cluster("4xv100"), "fast")
