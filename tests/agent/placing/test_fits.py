"""Whether a training fits: bytes by kind against the simulated step, and largest batches against captures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agent import fits, place
from agent.commands.evaluate import main
from agent.placing.fits import MemoryAnswer, MemoryUse
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.problem import InfeasibleError, Problem
from envs.simulator.simulate import simulate_problem
from graphs.capture.capture import capture
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph
from graphs.step_settings import GRANULARITIES

WIDTH, N_LAYERS = 512, 8
WEIGHTS = N_LAYERS * WIDTH * (WIDTH + 1)


class Layers(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(N_LAYERS))
        self.to(dtype)

    def forward(self, x: Tensor, row: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


class OfFour(Layers):
    def forward(self, x: Tensor, row: Tensor | None = None) -> Tensor:
        return super().forward(x.view(4, WIDTH))


def make() -> tuple[nn.Module, Tensor]:
    with torch.device("meta"):
        return Layers(), torch.zeros(64, WIDTH)


def four(memory_bytes: float) -> Cluster:
    """Four devices of a memory."""
    cluster = get_cluster("4xv100")
    devices = tuple(replace(device, memory_bytes=memory_bytes) for device in cluster.devices)
    return replace(cluster, devices=devices, sharing="pair")


def by_way(fit: MemoryAnswer) -> dict[str, MemoryUse]:
    return {use.way: use for use in fit.uses}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_parts_are_those_of_the_simulated_step(dtype: torch.dtype) -> None:
    with torch.device("meta"):
        module, x = Layers(dtype), torch.zeros(64, WIDTH, dtype=dtype)
    settings: Any = {"master_weights": "fp32", "gradient_dtype": "fp32"} if dtype != torch.float32 else {}
    uses = by_way(fits(module, x, cluster=four(1e9), **settings))
    alone, sharded, stages = uses["one device"], uses["ZeRO-1"], uses["4 stages"]
    size, masters = dtype.itemsize, 4 * WEIGHTS if settings else 0
    kept = alone.weights_bytes, alone.gradient_bytes, alone.state_bytes, alone.master_bytes
    assert kept == (size * WEIGHTS, 4 * WEIGHTS, 8 * WEIGHTS, masters)
    plan = place(module, x, cluster=four(1e9), placer="single", **settings)
    assert alone.total_bytes == plan.step_time.peak_bytes.max()
    assert alone.activation_bytes == pytest.approx(size * 64 * WIDTH * N_LAYERS, rel=0.2)
    assert (sharded.state_bytes, sharded.master_bytes) == (alone.state_bytes / 4, masters / 4)
    assert alone.total_bytes - sharded.total_bytes == pytest.approx(0.75 * (8 * WEIGHTS + masters))
    assert 0.25 <= stages.weights_bytes / alone.weights_bytes < 0.4
    assert stages.state_bytes == pytest.approx(stages.weights_bytes * 8 / size)
    assert uses["data parallel"] == replace(alone, way="data parallel")


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
def test_the_largest_batch_fits_and_the_next_one_does_not(precision: str) -> None:
    module, x = make()
    memory_bytes = 20.0 * WEIGHTS
    (use, *_) = fits(module, x, cluster=four(memory_bytes), precision=precision, optimizer="sgd").uses
    largest = use.largest_batch
    assert largest is not None
    peaks = []
    for batch in (largest, largest + 1):
        inputs = torch.zeros(batch, WIDTH, device="meta")
        plan = place(
            module, inputs, cluster=four(1e12), placer="single", precision=precision, optimizer="sgd"
        )
        peaks.append(plan.step_time.peak_bytes.max())
    assert peaks[0] <= memory_bytes < peaks[1]


def test_a_batch_of_one_has_other_ops_than_larger_ones_and_a_largest_batch() -> None:
    class Mixed(Layers):
        def forward(self, x: Tensor, row: Tensor | None = None) -> Tensor:
            return super().forward(x * x.sum(0) if len(x) > 1 else x)

    with torch.device("meta"):
        module, x = Mixed(), torch.zeros(1, WIDTH)
    largest = fits(module, x, cluster=four(20.0 * WEIGHTS)).uses[0].largest_batch
    assert largest is not None
    for batch, is_right in ((largest, True), (largest + 1, False)):
        problem = Problem(capture(module, torch.zeros(batch, WIDTH, device="meta")), four(20.0 * WEIGHTS))
        assert simulate_problem(problem, np.zeros(problem.graph.n_ops, dtype=np.int64)).fits == is_right


def test_a_step_that_is_too_large_is_told_what_makes_it_fit(capsys: pytest.CaptureFixture[str]) -> None:
    module, x = make()
    fit = fits(module, x, cluster=four(11.0 * WEIGHTS))
    uses = by_way(fit)
    assert not uses["one device"].fits
    assert uses["3 stages"].fits
    assert uses["all in bf16"].fits
    assert uses["all in bf16"].state_bytes == 4 * WEIGHTS
    text = str(fit)
    assert text.startswith("the step does not fit, but with ZeRO-1, 4 stages, 3 stages, all in bf16,")
    assert max(map(len, text.splitlines()[1:])) <= 80
    large = torch.zeros(4096, WIDTH, device="meta")
    tight = by_way(fits(module, large, cluster=four(9.0 * WEIGHTS), optimizer="sgd"))
    assert not tight["4 stages"].fits
    assert tight["4 stages, recompute"].total_bytes < tight["4 stages"].total_bytes
    batch = next(use for way, use in tight.items() if way.startswith("batch of "))
    assert batch.way == f"batch of {tight['one device'].largest_batch:,}"
    assert batch.fits


def test_a_batch_that_cannot_grow_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.device("meta"):
        fit = fits(OfFour(), torch.zeros(4, WIDTH), cluster=four(1e9))
    assert fit.uses[0].largest_batch is None
    assert "the largest batch is not known, as a larger one cannot be captured: " in capsys.readouterr().err


def test_pipelines_are_left_out_where_they_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    fit = fits(*make(), cluster=replace(four(1e9), schedule="fifo"))
    assert by_way(fit).keys() == {"one device", "data parallel", "ZeRO-1"}
    assert "pipelines are left out: " in capsys.readouterr().err


def test_the_command_answers_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    spec = f"{__name__}:make"
    assert main(["--model", spec, "--fit", "--optimizer", "sgd:momentum=0.9", "--cluster", "2xk80"]) == 0
    assert capsys.readouterr().out.startswith("the step fits on devices of 12 GB\nGB ")
    of_model = ("--inference", "--cluster a b", "--pipeline gpipe")
    for flags in ("--families ptb", *(f"--model {spec} {flags}" for flags in of_model)):
        assert main([*flags.split(), "--fit"]) == 2
        assert "--fit answers for the training of one --model on one --cluster" in capsys.readouterr().err


def test_on_unequal_devices_replicas_need_the_memory_on_each() -> None:
    cluster = four(30.0 * WEIGHTS)
    small = replace(cluster.devices[2], memory_bytes=15.0 * WEIGHTS)
    devices = tuple(small if at == 2 else device for at, device in enumerate(cluster.devices))
    uses = by_way(fits(*make(), cluster=replace(cluster, devices=devices), optimizer="adam"))
    assert uses["one device"].fits
    assert not uses["data parallel"].fits
    assert uses["data parallel"].memory_bytes == 15.0 * WEIGHTS


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
    plan = place(graph, cluster=four(share * graph.resident_bytes.sum()), placer=placer, budget=100)
    used = [set(plan.placement.device_of[of_vision(graph, layer)].tolist()) for layer in range(N_UNREAD)]
    assert plan.step_time.fits
    assert all(len(devices) == 1 for devices in used)
    assert len(set.union(*used)) > 1


def test_a_pipeline_spreads_them_too() -> None:
    graph = graph_of()
    cluster = four(0.4 * graph.resident_bytes.sum())
    assert place(graph, cluster=cluster, placer="equal-time", pipeline="1f1b", budget=50).step_time.fits


def refusal(model: nn.Module, inputs: Tensor, memory_bytes: float, **settings: object) -> str:
    graph = capture(model, inputs, name="m", notify=lambda line: None, **settings)  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError) as error:
        Problem(graph, four(memory_bytes)).check_feasible()
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
