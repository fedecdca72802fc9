"""Parameters that no op reads go anywhere, whole modules together; what does not fit is told part by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agent import place
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.problem import InfeasibleError, Problem
from graphs.capture.capture import capture
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph
from graphs.step_settings import GRANULARITIES

N_UNREAD = 6


class Model(nn.Module):
    """A tower that does not run beside layers that do."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.ModuleList(nn.Linear(256, 256) for _ in range(N_UNREAD))
        self.norm = nn.BatchNorm1d(32)
        self.text = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.text:
            x = layer(x).relu()
        return self.norm(x)


def graph_of(*, training: bool = True) -> OpGraph:
    return capture(Model(), torch.zeros(8, 32), training=training, name="m", notify=lambda line: None)


def cluster_of(memory_bytes: float) -> Cluster:
    cluster = get_cluster("4xv100")
    return replace(
        cluster, devices=tuple(replace(each, memory_bytes=memory_bytes) for each in cluster.devices)
    )


def of_vision(graph: OpGraph, layer: int) -> list[int]:
    return [op for op, name in enumerate(graph.op_names) if name.startswith(f"vision.{layer}.")]


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_module_that_does_not_run_is_a_unit_of_its_own(granularity: str) -> None:
    graph = with_granularity(graph_of(), granularity)
    units = [set(graph.unit_of[of_vision(graph, layer)].tolist()) for layer in range(N_UNREAD)]
    assert all(len(unit) == 1 for unit in units)
    assert len(set.union(*units)) == N_UNREAD
    members = np.flatnonzero(np.isin(graph.unit_of, list(set.union(*units))))
    assert len(members) == 2 * N_UNREAD
    assert graph.is_compute[graph.unread].all()


def test_a_counter_that_no_op_reads_goes_with_its_module() -> None:
    graph = graph_of(training=False)
    counter, mean = (graph.op_names.index(f"norm.{name}") for name in ("num_batches_tracked", "running_mean"))
    assert graph.unit_of[counter] == graph.unit_of[mean]


@pytest.mark.parametrize("placer", ["heft", "refine", "memory-fill", "policy"])
@pytest.mark.parametrize("share", [0.4, 4.0])
def test_modules_that_do_not_run_are_spread_over_the_devices(placer: str, share: float) -> None:
    graph = graph_of()
    cluster = cluster_of(share * graph.resident_bytes.sum())
    plan = place(graph, cluster=cluster, placer=placer, budget=100)
    used = [set(plan.placement.device_of[of_vision(graph, layer)].tolist()) for layer in range(N_UNREAD)]
    assert plan.step_time.fits
    assert all(len(devices) == 1 for devices in used)
    assert len(set.union(*used)) > 1


def test_a_pipeline_spreads_them_too() -> None:
    graph = graph_of()
    cluster = cluster_of(0.4 * graph.resident_bytes.sum())
    plan = place(graph, cluster=cluster, placer="equal-time", pipeline="1f1b", budget=50)
    assert plan.step_time.fits


def refusal(model: nn.Module, inputs: Tensor, memory_bytes: float, **settings: object) -> str:
    graph = capture(model, inputs, name="m", notify=lambda line: None, **settings)  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError) as error:
        Problem(graph, cluster_of(memory_bytes)).check_feasible()
    return str(error.value).partition("cluster '4xv100': ")[2]


def test_what_does_not_fit_is_told_part_by_part() -> None:
    with torch.device("meta"):
        linear, x, tokens = nn.Linear(16000, 16000, bias=False), torch.zeros(8, 16000), torch.zeros(8).long()
        table, sparse = nn.Embedding(10_000_000, 100), nn.Embedding(10_000_000, 100, sparse=True)
        unread = nn.Sequential(nn.Linear(4, 4))
        unread[0].register_buffer("table", torch.zeros(1_000_000_000))
    keeps = "and what is colocated with it keep"
    assert refusal(linear, x, 3e9) == (
        f"op 'weight' {keeps} 4.1 GB (1.02 weights, 1.02 gradients, 2.05 optimizer state), but the "
        "largest device has 3 GB; use a larger device, or SGD, which keeps no optimizer state"
    )
    assert refusal(linear, x, 1e9, training=False) == (
        f"op 'weight' {keeps} 1.02 GB (1.02 weights), but the largest device has 1 GB; use a larger device"
    )
    assert refusal(table, tokens, 10e9) == (
        f"op 'weight' {keeps} 16 GB (4 weights, 4 gradients, 8 optimizer state), but the largest device has "
        "10 GB; rows of a table are not split over devices; use a larger device, or sparse=True with SGD, "
        "which keeps no optimizer state"
    )
    assert refusal(sparse, tokens, 3e9, optimizer="sgd").endswith("over devices; use a larger device")
    assert refusal(unread, torch.zeros(2, 4), 3e9) == (
        f"op '0.table' {keeps} 4 GB (4 weights that no op reads), but the largest device has 3 GB; use a "
        "larger device"
    )
    whole = refusal(nn.Sequential(nn.Linear(9000, 9000), nn.Linear(9000, 9000)), torch.zeros(8, 9000), 5e8)
    assert "smaller model" not in whole
