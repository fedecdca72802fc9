"""What each target cuts or counts: any modules in program order, or one list of layers."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from agent import place
from agent.placing.exports.export import ExportError, PlacedModules, export_text
from agent.placing.plan import PipelinePlan
from envs.cluster.presets import get_cluster
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.capture.capture import capture
from graphs.op_graph import OpGraph
from tests.agent.placing.exports import targets

WIDTH = 16


class Block(nn.Module):
    """A layer with a residual, which no target can cut."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


class Named(nn.Module):
    """Layers named layer0, layer1 and so on, between two projections."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        for k in range(6):
            self.add_module(f"layer{k}", Block())

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for k in range(6):
            x = getattr(self, f"layer{k}")(x)
        return self.output(x)


class Wrapped(nn.Module):
    """The same, deeper."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Named()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Alex(nn.Module):
    """Two `Sequential`s with layers that do nothing, and a `flatten` between them."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Identity(), nn.Conv2d(8, 8, 3), nn.ReLU()]
        self.features, self.pool = nn.Sequential(*convolutions), nn.AdaptiveAvgPool2d(2)
        linear = [nn.Dropout(0.0), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4), nn.Identity()]
        self.classifier = nn.Sequential(*linear)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1)
        self.downsample = nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv(x) + self.downsample(x)).relu()


class ResNet(nn.Module):
    """Lists named layer1 to layer3."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        for k in range(1, 4):
            self.add_module(f"layer{k}", nn.Sequential(Residual(8, 8), Residual(8, 8)))
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


class Tower(nn.Module):
    """A vision tower of more layers than the language model has."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.positions = nn.Linear(8, WIDTH), nn.Embedding(4, WIDTH)
        self.register_buffer("index", torch.arange(4))
        self.blocks = nn.ModuleList(Block() for _ in range(9))

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch(pixels) + self.positions(self.index)
        for block in self.blocks:
            x = block(x)
        return x


class Language(nn.Module):
    """A language model with layers that do nothing, the last of them not even called."""

    def __init__(self, n_predicted: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(50, WIDTH)
        layers = [nn.Identity(), *(Block() for _ in range(4)), nn.Identity(), Block(), nn.Identity()]
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(WIDTH)
        self.mtp = nn.ModuleList(Block() for _ in range(n_predicted))


class Vlm(nn.Module):
    """A vision-language model, with layers for multi-token prediction."""

    def __init__(self, n_predicted: int = 0) -> None:
        super().__init__()
        self.visual, self.model = Tower(), Language(n_predicted)
        self.lm_head = nn.Linear(WIDTH, 50)

    def forward(self, ids: Tensor, pixels: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = torch.cat([self.model.embed_tokens(ids), self.visual(pixels)], 1)
        for layer in self.model.layers[:-1]:
            x = layer(x)
        heads = [self.lm_head(self.model.norm(x))]
        for layer in self.model.mtp:
            x = layer(x)
            heads.append(self.lm_head(x))
        return torch.stack([head.square().mean() for head in heads]).sum()


VLM_INPUTS = (torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 4, 8))
ROWS, IMAGES = torch.zeros(8, WIDTH), torch.zeros(8, 3, 12, 12)
N_LANGUAGE = 8
MODULES = {"named": (Named(), ROWS), "wrapped": (Wrapped(), ROWS), "alex": (Alex(), IMAGES)}
MODULES["resnet"] = (ResNet(), IMAGES)


def make() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Makes a model and its inputs, for `--model`."""
    return Vlm(), VLM_INPUTS


@cache
def vlm_graph(n_predicted: int = 0) -> OpGraph:
    return capture(Vlm(n_predicted), VLM_INPUTS, optimizer="sgd", notify=lambda line: None)


def on(graph: OpGraph, *begins: str) -> PlacedModules:
    """Devices one after the other in program order; each begins where a module is called first."""
    device_of = np.zeros(graph.n_ops, dtype=np.int64)
    forward: dict[str, int] = {}
    device = 0
    for op, path in enumerate(graph.modules):
        if graph.phases[op] == "forward" and graph.op_types[op] != "parameter":
            if device < len(begins) and f"{path}.".startswith(f"{begins[device]}."):
                device += 1
            device_of[op] = forward[path] = device
    return PlacedModules(Problem(graph, get_cluster("4xv100")), Placement(device_of))


@cache
def plan_of(name: str, n_devices: int) -> PipelinePlan:
    cluster = f"4xv100:{n_devices}"
    return place(*MODULES[name], cluster=cluster, pipeline="1f1b", split=4, placer="equal-time", budget=5)


@pytest.mark.parametrize("name", ["named", "wrapped", "alex", "resnet"])
@pytest.mark.parametrize("n_devices", [2, 3])
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_torch_splits_a_module_at_the_names_of_an_export(name: str, n_devices: int) -> None:
    plan, (module, inputs) = plan_of(name, n_devices), MODULES[name]
    names = json.loads(plan.export("split-spec"))
    assert names == list(plan.pipeline_stages(copy.deepcopy(module)).split_spec)
    expected = module(inputs)
    split = pipeline(copy.deepcopy(module), (inputs,), split_spec=dict.fromkeys(names, SplitPoint.BEGINNING))
    assert split.num_stages == len(names) + 1 == n_devices
    assert torch.equal(split(inputs)[0], expected)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("named", ["inp", *(f"layer{k}" for k in range(6)), "output"]),
        ("wrapped", ["net.inp", *(f"net.layer{k}" for k in range(6)), "net.output"]),
        ("alex", [*(f"features.{k}" for k in range(5)), "pool", *(f"classifier.{k}" for k in range(5))]),
        ("resnet", ["conv1", *(f"layer{k}.{n}" for k in (1, 2, 3) for n in (0, 1)), "fc"]),
    ],
)
def test_deepspeed_counts_every_module_once(name: str, layers: list[str]) -> None:
    text = plan_of(name, 3).export("deepspeed")
    (named,) = [line for line in text.splitlines() if line.startswith("# layers: ")]
    assert named == f"# layers: {', '.join(layers)}"
    ranges = [targets.deepspeed_ranges(text, len(layers), stage) for stage in range(3)]
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert all(begin < end for begin, end in ranges)


@pytest.mark.parametrize("name", ["named", "alex", "resnet"])
def test_torchtitan_names_every_child_once_and_keeps_a_sequential_whole(name: str) -> None:
    settings = targets.torchtitan_settings(plan_of(name, 2).export("torchtitan"))
    parts = settings["module_fqns_per_model_part"]
    assert isinstance(parts, list)
    assert len(parts) == settings["pipeline_parallel_degree"] == 2
    children = sorted(child for part in parts for child in part)
    assert children == sorted(child for child, _ in MODULES[name][0].named_children())


@pytest.mark.parametrize("target", ["deepspeed", "torchtitan"])
def test_tied_weights_in_several_stages_are_named(target: str) -> None:
    module = Named()
    assert "must tie" not in export_text(target, on(capture(module, ROWS), "layer3"))
    module.layer5.up.weight = module.layer0.up.weight
    graph = capture(module, ROWS)
    tied = "one tensor in several places, which the target must tie: layer0.up.weight, layer5.up.weight"
    assert tied in export_text(target, on(graph, "layer3"))


def test_moved_cuts_are_said() -> None:
    plan = plan_of("named", 4)
    assert ".down" in plan.export("split-spec")
    for target in ("deepspeed", "torchtitan"):
        assert "ops move to begin stages with modules; a step takes" in plan.export(target)


def test_torch_splits_at_each_call_so_a_module_that_is_called_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.again(self.first(x)).relu()).mean()

    graph = capture(Twice(), ROWS, optimizer="sgd")
    with pytest.raises(ExportError, match="torch splits at each call of 'again'"):
        export_text("split-spec", on(graph, "again"))


@pytest.mark.parametrize(
    ("begins", "counts"),
    [
        (["model.layers.3"], [3, 5]),
        (["model.layers.2", "model.layers.4", "model.norm"], [2, 2, 4, 0]),
        (["visual", "model.layers.3", "lm_head"], [0, 3, 5, 0]),
        (["visual", "model.layers.1", "lm_head"], [0, 8, 0]),
        (["visual.blocks.4", "model.layers.6"], [0, 6, 2]),
        ([], [8]),
    ],
)
def test_servers_count_the_layers_of_the_language_model(begins: list[str], counts: list[int]) -> None:
    graph = vlm_graph()
    placed = on(graph, *begins)
    for name in ("vllm", "sglang"):
        text = export_text(name, placed)
        variable = f"{name.upper()}_PP_LAYER_PARTITION"
        found = targets.pp_indices(text, variable, N_LANGUAGE, len(counts))
        assert [end - begin for begin, end in found] == counts
    stages = targets.megatron_stages(export_text("megatron", placed))
    assert [stage.count("t") for stage in stages] == counts


def test_what_a_server_runs_elsewhere_is_said() -> None:
    text = export_text("vllm", on(vlm_graph(), "visual.blocks.4", "model.layers.6"))
    assert "# vLLM runs on the first or last rank, unlike the placement: visual\n" in text
    assert "unlike" not in export_text("vllm", on(vlm_graph(), "model.layers.6"))


def test_lists_may_be_named_and_joined() -> None:
    placed = on(vlm_graph(), "model.layers.3")
    named = export_text("vllm", replace(placed, layers="visual.blocks"))
    assert targets.pp_indices(named, "VLLM_PP_LAYER_PARTITION", 9, 2) == [(0, 9), (9, 9)]
    both = export_text("vllm", replace(placed, layers="visual.blocks,model.layers"))
    assert targets.pp_indices(both, "VLLM_PP_LAYER_PARTITION", 17, 2) == [(0, 12), (12, 17)]
    for wrong in ("layers", "visual.blocks,layers"):
        with pytest.raises(ExportError, match=r"has no modules in .*layers'.* name a list: layers="):
            export_text("vllm", replace(placed, layers=wrong))


def test_layers_with_numbers_in_their_names_may_be_named() -> None:
    graph = capture(Wrapped(), ROWS, optimizer="sgd")
    text = export_text("vllm", replace(on(graph, "net.layer2"), layers="net.layer"))
    assert targets.pp_indices(text, "VLLM_PP_LAYER_PARTITION", 6, 2) == [(0, 2), (2, 6)]


@pytest.mark.parametrize(
    ("begins", "stages"),
    [
        (["model.layers.3"], ["Ettt", "tttttmmL"]),
        (["model.layers.3", "model.mtp.0", "mtp.1"], ["Ettt", "ttttt", "mmL"]),
        (["model.layers.3", "model.mtp.0", "model.mtp.1"], ["Ettt", "ttttt", "", "mmL"]),
    ],
)
def test_megatron_keeps_predicting_layers_together(begins: list[str], stages: list[str]) -> None:
    text = export_text("megatron", on(vlm_graph(2), *begins))
    assert targets.megatron_stages(text) == stages


def test_a_graph_without_its_modules_counts_those_of_its_ops() -> None:
    graph = replace(vlm_graph(), tree={})
    text = export_text("vllm", on(graph, "model.layers.3"))
    assert targets.pp_indices(text, "VLLM_PP_LAYER_PARTITION", 5, 2) == [(0, 2), (2, 5)]


def test_the_command_line_takes_the_name_of_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agent.commands.evaluate import main

    monkeypatch.chdir(tmp_path)
    words = ["--model", f"{__name__}:make", "--granularity", "layer", "--placers", "single", "heft"]
    words += ["--export", "vllm"]
    for layers, count in (("", N_LANGUAGE), ("visual.blocks", 9)):
        out = tmp_path / (layers or "found")
        assert main([*words, "--out", str(out), *(["--export-layers", layers] if layers else [])]) == 0
        assert "export vllm: 2 of 2 placements have a file *.vllm.env" in capsys.readouterr().out
        (path,) = out.rglob("single.vllm.env")
        assert path.read_text().endswith(f"VLLM_PP_LAYER_PARTITION={count}\n")
