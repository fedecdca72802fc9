"""Exports of placements, read by the rules of their targets."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.pipelining.schedules import _Action

from agent import place
from agent.pipeline.exports import StagedModules
from agent.placing.exports.export import EXPORTS, ExportError, PlacedModules, export_text, placed_modules
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.capture.capture import capture
from graphs.granularity import with_granularity
from graphs.io.graph_files import write_graphs
from graphs.op_graph import OpGraph
from tests.agent.placing.exports import targets
from tests.envs.pipeline.random_pipelines import random_training_graph

N_LAYERS = 6


class Block(nn.Module):
    def __init__(self, n_experts: int = 0) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(16), nn.Linear(16, 16)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(n_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.norm(x))
        for expert in self.experts:
            x = x + expert(x)
        return x


class Model(nn.Module):
    def __init__(self, n_experts: int = 0) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(Block(n_experts) for _ in range(N_LAYERS))
        self.norm, self.output = nn.LayerNorm(16), nn.Linear(16, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


IDS = torch.zeros(4, 8, dtype=torch.int64)


def graph_of(module: nn.Module, granularity: str = "layer") -> OpGraph:
    return with_granularity(capture(module, IDS, optimizer="sgd"), granularity)


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return graph_of(Model())


def placed(
    graph: OpGraph, cluster: Cluster, device_of_layer: list[int], experts: dict[int, int] | None = None
) -> PlacedModules:
    """Layers on given devices, the embedding with the first, the rest with the last."""
    device_of = np.full(graph.n_ops, device_of_layer[-1], dtype=np.int64)
    for op, path in enumerate(graph.modules):
        parts = path.split(".")
        if parts[0] == "tok_embeddings":
            device_of[op] = device_of_layer[0]
        elif parts[0] == "layers":
            layer = int(parts[1])
            device_of[op] = device_of_layer[layer]
            if "experts" in parts:
                device_of[op] = (experts or {}).get(layer, device_of_layer[layer])
    return PlacedModules(Problem(graph, cluster), Placement(device_of))


def pipelined(graph: OpGraph, schedule: str, first: list[str], devices: list[int]) -> PlacedModules:
    """Stages that begin with given modules."""
    problem, pipeline = Problem(graph, get_cluster("4xv100")), Pipeline(schedule, 8)
    chain = PipelinedProblem(problem, pipeline).chain
    ops = [
        next(
            op
            for op, module in enumerate(graph.modules)
            if f"{module}.".startswith(f"{path}.") and not graph.is_source[op]
        )
        for path in first
    ]
    pieces = [0, *(int(chain.piece_of[op]) for op in ops)]
    stages = chain.stages(np.array(pieces), np.array(devices)[np.arange(len(pieces)) % len(devices)])
    return placed_modules(PipelineObjective(problem, pipeline), stages.placement)


def test_servers_give_each_rank_its_layers(graph: OpGraph) -> None:
    text = export_text("vllm", placed(graph, get_cluster("4xv100"), [2, 2, 2, 2, 0, 0]))
    assert targets.pp_indices(text, "VLLM_PP_LAYER_PARTITION", N_LAYERS, 2) == [(0, 4), (4, 6)]
    assert "ranks in order: gpu2, gpu0" in text


def test_llama_cpp_runs_each_layer_where_it_is_placed(graph: OpGraph) -> None:
    cluster = get_cluster("4xv100")
    for layers in ([0, 0, 0, 1, 1, 2], [3, 1, 1, 1, 1, 1], [1] * 6, [2, 2, 2, 2, 2, 0]):
        text = export_text("llama.cpp", placed(graph, cluster, layers))
        found, on_cpu = targets.llama_devices(text, N_LAYERS)
        assert found == [f"CUDA{device}" for device in [*layers, layers[-1]]]
        assert not on_cpu


def test_llama_cpp_keeps_first_layers_and_experts_on_the_cpu() -> None:
    graph, cluster = graph_of(Model(2), "module"), get_cluster("gpu+cpu")
    names = ["CPU" if device.kind == "xeon" else "CUDA0" for device in cluster.devices]
    gpu, cpu = names.index("CUDA0"), names.index("CPU")
    layers = [cpu, cpu, gpu, gpu, gpu, gpu]
    found, on_cpu = targets.llama_devices(
        export_text("llama.cpp", placed(graph, cluster, layers, {3: cpu, 5: cpu})), N_LAYERS
    )
    assert found == [*(names[device] for device in layers), "CUDA0"]
    assert on_cpu == [3, 5]
    assert export_text("llama.cpp", placed(graph, cluster, [cpu] * 6)) == "-ngl 0\n"
    with pytest.raises(
        ExportError, match=r"runs the first layers on the CPU, .* later ones; use -ngl 4, which"
    ):
        export_text("llama.cpp", placed(graph, cluster, [gpu, gpu, gpu, gpu, cpu, cpu]))
    with pytest.raises(
        ExportError, match="one range of layers; place with --pipeline, or with granularity layer"
    ):
        export_text("llama.cpp", placed(graph, get_cluster("4xv100"), [0, 1, 0, 1, 1, 1]))
    with pytest.raises(ExportError, match="at their experts alone"):
        export_text("llama.cpp", placed(graph, cluster, [cpu] * 6, {3: gpu}))


def test_megatron_lays_out_rounds_of_stages(graph: OpGraph) -> None:
    modules = pipelined(graph, "interleaved-1f1b:2", ["layers.1", "layers.2", "layers.4"], [0, 1])
    assert targets.megatron_stages(export_text("megatron", modules)) == ["Et", "t", "tt", "ttL"]
    assert "--pipeline-model-parallel-size 2 " in export_text("megatron", modules)


def test_trainers_get_the_modules_of_each_stage(graph: OpGraph) -> None:
    modules = pipelined(graph, "1f1b", ["layers.1", "layers.4"], [0, 1, 2])
    text = export_text("deepspeed", modules)
    ranges = [targets.deepspeed_ranges(text, N_LAYERS + 3, stage) for stage in range(3)]
    assert ranges == [(0, 2), (2, 5), (5, 9)]
    assert targets.torchtitan_settings(export_text("torchtitan", modules)) == {
        "pipeline_parallel_degree": 3,
        "module_fqns_per_model_part": [
            ["tok_embeddings", "layers.0"],
            ["layers.1", "layers.2", "layers.3"],
            ["layers.4", "layers.5", "norm", "output"],
        ],
        "pipeline_parallel_schedule": "1F1B",
    }
    assert json.loads(export_text("split-spec", modules)) == ["layers.1", "layers.4"]


def replicated(placed: PlacedModules, groups: tuple[tuple[int, ...], ...], *, shards: bool) -> PlacedModules:
    assert isinstance(placed, StagedModules)
    pipeline = replace(placed.pipeline, replicas=len(groups), shard_optimizer=shards)
    return replace(placed, pipeline=pipeline, stages=replace(placed.stages, groups=groups))


def test_trainers_get_the_degrees_of_replicas(graph: OpGraph, capsys: pytest.CaptureFixture[str]) -> None:
    one = pipelined(graph, "1f1b", ["layers.3"], [2, 0])
    in_runs = replicated(pipelined(graph, "1f1b", ["layers.3"], [0, 1]), ((0, 1), (2, 3)), shards=False)
    apart = replicated(one, ((0, 2), (1, 3)), shards=True)
    for placed, degrees, order in (
        (in_runs, (2, 1), "gpu0, gpu2, gpu1, gpu3"),
        (apart, (1, 2), "gpu2, gpu3, gpu0, gpu1"),
    ):
        titan, deepspeed = export_text("torchtitan", placed), export_text("deepspeed", placed)
        settings = targets.torchtitan_settings(titan)
        assert settings["pipeline_parallel_degree"] == 2
        assert [settings[f"data_parallel_{way}_degree"] for way in ("replicate", "shard")] == [*degrees]
        line = f"# 2 replicas: start 4 processes; their devices in order: {order}\n"
        assert line + "# local_batch_size is 4 times pipeline_parallel_microbatch_size\n" in titan
        assert line + "# gradient_accumulation_steps is 4\n" in deepspeed
        assert ("no ZeRO-1" in titan) == ('"stage": 1' in deepspeed) == placed.pipeline.shard_optimizer
    flags, layout = "--untie-embeddings-and-output-weights --pipeline", "--pipeline-model-parallel-size 2 --"
    first, last = export_text("megatron", in_runs), export_text("megatron", apart)
    assert f"{layout}use-tp-pp-dp-mapping {flags}" in first
    assert "devices in order: gpu0, gpu1, gpu2, gpu3\n# --global-batch-size is 8 times" in first
    assert f"{layout}use-distributed-optimizer {flags}" in last
    assert "in order: gpu2, gpu3, gpu0, gpu1" in last
    assert targets.megatron_stages(last) == ["Ettt", "tttL"]
    assert export_text("schedule-csv", apart).count("F") == 8
    export_text("vllm", apart), export_text("vllm", one)
    assert capsys.readouterr().err.splitlines() == [
        f"export {name} describes the first of 2 replicas; run the others alike"
        for name in ("schedule-csv", "vllm")
    ]


def test_unlike_devices_of_replicas_are_said(graph: OpGraph) -> None:
    placed = replicated(pipelined(graph, "1f1b", ["layers.3"], [0, 1]), ((0, 1), (2, 3)), shards=False)
    first, *others = placed.problem.cluster.devices
    cluster = replace(placed.problem.cluster, devices=(replace(first, kind="p100"), *others))
    placed = replace(placed, problem=replace(placed.problem, cluster=cluster))
    assert "# DeepSpeed gives all replicas equally many microbatches, though" in export_text(
        "deepspeed", placed
    )


@pytest.mark.parametrize("reads_weight", [False, True])
def test_megatron_ties_the_head_where_it_is_tied(*, reads_weight: bool) -> None:
    class Tied(Model):
        def __init__(self) -> None:
            super().__init__()
            if not reads_weight:
                self.output.weight = self.tok_embeddings.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.tok_embeddings(ids)
            for layer in self.layers:
                x = layer(x)
            return nn.functional.linear(x, self.tok_embeddings.weight) if reads_weight else self.output(x)

    text = export_text("megatron", placed(graph_of(Tied()), get_cluster("4xv100"), [0] * N_LAYERS))
    assert "untie" not in text


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble", "interleaved-1f1b:2"])
def test_torch_reads_the_schedule(graph: OpGraph, schedule: str) -> None:
    cuts = ["layers.1", "layers.2", "layers.4"] if ":" in schedule else ["layers.3"]
    text = export_text("schedule-csv", pipelined(graph, schedule, cuts, [0, 1]))
    rows = [[_Action.from_str(cell) for cell in row] for row in csv.reader(io.StringIO(text))]
    assert len(rows) == 2
    n_stages = len(cuts) + 1
    forward = {
        (cell.stage_index, cell.microbatch_index)
        for row in rows
        for cell in row
        if cell.computation_type.name == "FORWARD"
    }
    assert forward == {(stage, microbatch) for stage in range(n_stages) for microbatch in range(8)}


def test_what_a_target_cannot_run_is_one_line(graph: OpGraph) -> None:
    cluster = get_cluster("4xv100")
    apart = placed(graph, cluster, [0, 1, 0, 1, 1, 1])
    with pytest.raises(ExportError, match="gpu0 has layers that are not next to each other"):
        export_text("vllm", apart)
    ops = Placement(np.arange(graph.n_ops) % 4)
    with pytest.raises(ExportError, match=r"is on gpu. and gpu., and this target splits between layers"):
        export_text("megatron", replace(apart, placement=ops))
    rounds = pipelined(graph, "interleaved-1f1b:2", ["layers.1", "layers.2", "layers.4"], [0, 1])
    for target in ("vllm", "sglang", "llama.cpp", "deepspeed"):
        with pytest.raises(ExportError, match="has 2; place with --pipeline 1f1b"):
            export_text(target, rounds)
    with pytest.raises(ExportError, match="no schedule; place with --pipeline"):
        export_text("schedule-csv", apart)
    with pytest.raises(ExportError, match="unknown export 'vlm'; use one of split-spec"):
        EXPORTS["vlm"]
    flat = graph_of(nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 4)), "op")
    with pytest.raises(ExportError, match="no numbered modules that repeat"):
        export_text("vllm", PlacedModules(Problem(flat, cluster), Placement(np.zeros(flat.n_ops, dtype=int))))
    deep = graph_of(nn.Sequential(Model(), nn.Identity()))
    one = PlacedModules(Problem(deep, cluster), Placement(np.zeros(deep.n_ops, dtype=np.int64)))
    named = targets.torchtitan_settings(export_text("torchtitan", one))["module_fqns_per_model_part"]
    assert named == [["0", "1"]]
    last = np.array([int(path.startswith(("0.layers.5", "0.norm", "0.out"))) for path in deep.modules])
    with pytest.raises(ExportError, match="torchtitan splits the children of a model"):
        export_text("torchtitan", replace(one, placement=Placement(last)))


def test_two_lists_of_layers_fit_no_target_of_one() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 16)
            self.encoder = nn.ModuleList(Block() for _ in range(2))
            self.decoder = nn.ModuleList(Block() for _ in range(2))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            for block in (*self.encoder, *self.decoder):
                x = block(x)
            return x

    graph = graph_of(Two())
    one = PlacedModules(
        Problem(graph, get_cluster("4xv100")), Placement(np.zeros(graph.n_ops, dtype=np.int64))
    )
    with pytest.raises(
        ExportError, match="Megatron-LM splits one list of layers, and this model has decoder and encoder"
    ):
        export_text("megatron", one)


def test_a_plan_exports_itself() -> None:
    single = place(Model(), IDS, cluster="4xv100", placer="single")
    assert json.loads(single.export("accelerate")) == {"": single.placement.device_of[0]}


def test_placements_of_a_graph_without_module_paths_are_kept_without_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from agent.commands.evaluate import main

    bare = replace(random_training_graph(np.random.default_rng(0), 4), name="bare", family="file")
    assert not any(bare.modules)
    write_graphs(tmp_path / "bare.json", [bare])
    words = ["--graphs", str(tmp_path / "bare.json"), "--placers", "single", "--out", str(tmp_path / "out")]
    assert main([*words, "--export", "accelerate", "vllm"]) == 2
    printed = capsys.readouterr()
    assert "export accelerate: not for 1: graph 'bare': its ops have no module paths" in printed.out
    assert "export vllm: not for 1: graph 'bare' has no numbered modules" in printed.out
    assert printed.err.endswith("evaluate.py: no placement could be exported to accelerate, vllm\n")
