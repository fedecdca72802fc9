"""`from agent import place`: what `evaluate.py` finds, from Python."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from agent import Plan, place
from agent.bounds.lower_bound import lower_bound_s
from agent.commands.evaluate import main
from agent.evaluation.config import EvaluationConfig
from agent.evaluation.inputs import make_spec as spec_of
from agent.evaluation.worker import Worker
from envs.cluster.files import write_cluster
from envs.cluster.presets import get_cluster
from envs.objective import simulate
from envs.placements.files import read_placement
from envs.problem import InfeasibleError, Problem
from graphs.io.graph_files import write_graphs
from tests.agent.evaluation_cases import rows_of
from tests.agent.placement_cases import GB, make_cluster, training_graph

GRAPH = training_graph(3, 2)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return place(GRAPH, cluster="2xk80", placer="heft", budget=20)


def test_a_plan_says_where_every_op_goes_and_what_that_is_worth(plan):
    cluster = get_cluster("2xk80")
    assert list(plan.device_of) == list(GRAPH.op_names)
    assert set(plan.device_of.values()) <= {"gpu0", "gpu1"}
    assert plan.step_time.total_s == simulate(GRAPH, cluster, plan.placement).total_s
    assert plan.single_s == pytest.approx(Problem(GRAPH, cluster).scale_s)
    assert plan.ratio_to_single == plan.step_time.total_s / plan.single_s
    assert plan.lower_bound_s == lower_bound_s(Problem(GRAPH, cluster)) <= plan.step_time.total_s
    assert 1 <= plan.evaluations <= 20
    assert plan.wall_s > 0


def test_a_plan_is_saved_as_a_placement_file(plan, tmp_path):
    plan.save(tmp_path / "mine.json")
    read = read_placement(tmp_path / "mine.json", GRAPH, get_cluster("2xk80"))
    assert (read.device_of == plan.placement.device_of).all()
    assert json.loads((tmp_path / "mine.json").read_text())["device_of"] == plan.device_of


@pytest.mark.parametrize("draw", [Plan.plot, Plan.plot_graph])
def test_a_plan_is_drawn_and_saved(draw, plan, tmp_path):
    assert draw(plan, tmp_path / "plan.svg")._repr_svg_().startswith("<svg ")
    assert (tmp_path / "plan.svg").read_text().startswith("<svg ")
    draw(plan, tmp_path / "plan.png")
    with Image.open(tmp_path / "plan.png") as image:
        assert image.width == 1000
    with pytest.raises(ValueError, match=r"Format 'xyz' is not supported .*png.*svg"):
        draw(plan, tmp_path / "plan.xyz")
    assert {path.name for path in tmp_path.iterdir()} == {"plan.svg", "plan.png"}


def test_a_plan_prints_in_short_lines_the_last_of_which_is_the_advice(plan):
    first, second, third, fourth, fifth, *changes = lines = str(plan).splitlines()
    assert max(map(len, lines)) <= 80
    assert first.startswith("toy on 2xk80 (uncalibrated) by heft: a step takes ")
    assert f"{plan.ratio_to_single:.3f} of the fastest single device's" in second
    assert third.startswith("ops: gpu0 ")
    assert fourth == f"data parallel: {plan.data_parallel}"
    assert fifth.startswith("use data parallelism")
    assert "its step averages 2 such batches" in " ".join([fifth, *changes])
    assert "; 2 evaluations in " in str(replace(plan, evaluations=2))
    assert "; 1 evaluation in " in str(replace(plan, evaluations=1))


def test_a_notebook_shows_plans_graphs_and_clusters_in_short(plan):
    assert repr(plan) == str(plan)
    assert plan._repr_html_().startswith(f"<pre>{escape(str(plan))}</pre>\n<svg ")
    assert repr(plan.graph) == f"<OpGraph toy: {GRAPH.n_ops} ops, {GRAPH.n_tensors} tensors>"
    assert repr(plan.cluster) == "<Cluster 2xk80: gpu0, gpu1>"


def test_names_that_are_long_are_shortened_in_all_that_is_printed():
    names = ["x" * 5_000, "y" * 5_000]
    cluster = make_cluster(2)
    devices = tuple(replace(each, name=name) for each, name in zip(cluster.devices, names, strict=True))
    cluster = replace(cluster, name="c" * 5_000, devices=devices)
    graph = replace(training_graph(2, 1), name="g" * 5_000)
    plan = place(graph, cluster=cluster, placer="round-robin")
    shown = f"{plan}\n{plan.explain()}\n{cluster!r}\n{graph!r}"
    assert max(map(len, shown.splitlines())) < 400
    assert len(plan._repr_html_()) < 50_000


def test_a_plan_says_what_data_parallelism_would_do_with_the_same_devices(plan):
    both = plan.data_parallel
    assert both.devices == (0, 1)
    assert both.step_s >= plan.single_s
    assert f"{both.step_s / 2 * 1e3:.4g} ms a batch on 2 devices" in str(both)
    with pytest.raises(ValueError, match="'data-parallel' is no placement"):
        place(GRAPH, placer="data-parallel")


@pytest.mark.parametrize("placer", ["annealing", "policy-sample"])
def test_place_finds_what_an_evaluation_finds(placer, tmp_path):
    write_graphs(tmp_path / "graph.json", [GRAPH])
    config = EvaluationConfig(
        graphs=(str(tmp_path / "graph.json"),), placers=(placer,), orders=("b-level",), budget=40, seeds=2
    )
    spec, _ = spec_of(config)
    worker = Worker(spec)
    for task in spec.tasks():
        trial, placed = worker.run(task)
        found = place(GRAPH, placer=placer, order="b-level", budget=40, seed=task.seed)
        assert (found.placement.device_of == placed.placement.device_of).all()
        assert (found.step_time.total_s, found.evaluations) == (trial.step_time_s, trial.evaluations)
        assert (found.ratio_to_single, found.lower_bound_s) == (trial.ratio_to_single, trial.lower_bound_s)


def test_where_nothing_fits_the_plan_says_so():
    small = make_cluster(2, memory_bytes=4 * GB, name="small")
    found = place(GRAPH, cluster=small, placer="single")
    assert not found.step_time.fits
    assert found.ratio_to_single is None
    assert "out of memory" in str(found)
    assert "no device has the memory of a replica" in str(found)
    with pytest.raises(InfeasibleError, match="largest device"):
        place(GRAPH, cluster=make_cluster(2, memory_bytes=0.1 * GB, name="tiny"), placer="single")


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"placer": "hefty"}, "unknown placer 'hefty'; use "),
        ({"budget": 0}, "at least 1"),
        ({"policy": "absent", "placer": "policy"}, "absent"),
        ({"cluster": 4}, "cluster is 4; use a string or PathLike or Cluster"),
        ({"placer": ["heft"]}, "placer is a list; use a string or None"),
        ({"budget": True}, "budget is True; use a whole number or None"),
        ({"seconds": float("nan")}, "seconds is nan; use a number or None"),
        ({"seed": -1}, "seed is -1; use a whole number, at least 0"),
        ({"order": ["topo"]}, "order is a list; use a string"),
        ({"policy": 5}, "policy is 5"),
        ({"gradient_dtype": "fp32"}, "a graph keeps what it was captured with"),
        ({"training": "no"}, "training is 'no'; use True or False"),
        ({"precision": torch.bfloat16}, "precision is a dtype"),
        ({"pipeline": 3}, "pipeline is 3; use Pipeline or a string or None"),
        ({"split_inputs": "x"}, "split_inputs is 'x'; use a list"),
        ({"inputs": "4xv100"}, r"inputs are a module's, and a graph has none; call place\(graph, cluster="),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(changes, clause):
    with pytest.raises(ValueError, match=clause) as refused:
        place(GRAPH, **changes)
    assert "\n" not in str(refused.value)


def test_the_loss_that_a_function_returns_is_the_third_argument(capsys: pytest.CaptureFixture[str]):
    made = nn.Linear(8, 8), torch.zeros(4, 8), lambda outputs: outputs.abs().sum()
    graph = place(*made, cluster="2xk80", placer="single").graph
    assert graph.op_types.count("aten.abs") == 1
    assert capsys.readouterr().err == ""


def test_a_module_is_captured_as_the_arguments_say():
    module, inputs = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (torch.zeros(4, 8),)

    def graph_of(**settings):
        return place(module, inputs, placer="single", **settings).graph

    assert any(name.startswith("adam/") for name in graph_of().op_names)
    assert not any(name.startswith("adam/") for name in graph_of(optimizer=None).op_names)
    assert set(graph_of(training=False).phases) == {"forward"}
    assert set(graph_of(precision="bf16").dtypes) == {"bf16"}
    with pytest.raises(ValueError, match="unknown precision 'fp6'; use one of fp32, tf32, amp-bf16"):
        place(module, inputs, placer="single", precision="fp6")


INTEGERS = torch.zeros(4, 8, dtype=torch.int64)


@pytest.mark.parametrize(
    ("module", "inputs", "clause"),
    [
        (nn.Linear(8, 2), None, "example inputs"),
        (Problem(GRAPH, make_cluster(2)), None, r"model is a Problem; call place\(problem.graph, cluster="),
        (nn.Linear, INTEGERS, "no torch.nn.Module"),
        (nn.Linear(8, 2), INTEGERS.numpy(), r"NumPy arrays; use tensors, as torch.as_tensor\(array\)"),
        (nn.Linear(8, 2), {"input": [INTEGERS.numpy()]}, "NumPy arrays"),
        (nn.Linear(8, 2), "4xv100", "inputs are a string"),
        (nn.Linear(8, 2), INTEGERS, r"aten.addmm multiplies torch.int64 by torch.float32.*inputs.float\(\)"),
        (nn.Sequential(nn.ReLU(), nn.Linear(8, 2)), INTEGERS.double(), "aten.addmm multiplies torch.float64"),
        (nn.Conv1d(4, 2, 3), INTEGERS[None], r"different types; .*inputs.float\(\)"),
        (nn.LayerNorm(8), INTEGERS, r"inputs.float\(\)"),
        (nn.LSTM(8, 2), INTEGERS, r"inputs.float\(\)"),
        (nn.Embedding(8, 2), INTEGERS.float(), r"indices as inputs.long\(\)"),
    ],
)
def test_wrong_models_and_inputs_are_refused_in_one_line(module, inputs, clause):
    with pytest.raises(ValueError, match=clause) as refused:
        place(module, inputs, placer="single", training=isinstance(module, nn.Sequential))
    assert "\n" not in str(refused.value)


def test_numbers_of_numpy_and_paths_are_arguments_too(tmp_path):
    write_cluster(tmp_path / "mine.json", make_cluster(2, name="mine"))
    plan = place(GRAPH, cluster=tmp_path / "mine.json", placer="random", budget=np.int64(3), seed=np.int64(1))
    assert (plan.cluster.name, plan.evaluations) == ("mine", 3)
    timed = place(GRAPH, cluster=plan.cluster, placer="random", seconds=0.05)
    assert timed.cluster is plan.cluster
    assert timed.wall_s < 60


def test_agent_has_a_front_door():
    import agent

    assert all(callable(getattr(agent, name)) for name in ("place", "Plan", "load_instance"))
    with pytest.raises(
        AttributeError, match=r"no attribute 'plce'; it has .*, Plan, fits, list_instances, .*, place"
    ):
        agent.plce  # noqa: B018


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), torch.randn(32, 64)


def test_a_saved_plan_is_scored_under_the_name_of_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = place(*perceptron(), cluster="2xk80", placer="contiguous")
    plan.save("placement.json")
    words = ["--model", f"{__name__}:perceptron", "--cluster", "2xk80", "--placements", "placement.json"]
    assert main([*words, "--out", "out"]) == 0
    assert "placement.json: is for graph 'Sequential', here 'perceptron'" in capsys.readouterr().err
    (row,) = rows_of(tmp_path / "out")
    assert (row["placer"], row["evaluations"]) == ("placement", "1")
    assert float(row["step_time_s"]) == plan.step_time.total_s
    other = place(nn.Linear(64, 64), torch.randn(32, 64), cluster="2xk80", placer="single")
    other.save("placement.json")
    assert main([*words, "--out", "new"]) == 2
    assert "is for graph 'Linear', which is not one of the given graphs" in capsys.readouterr().err


@pytest.mark.parametrize("returned", ["module, x, y", "module, (x, y), [x]", "module, (x, y), []"])
def test_a_third_value_that_is_no_loss_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], returned: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"my_inputs_{len(returned)}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def make():\n    module, x, y = nn.Bilinear(4, 4, 4), torch.ones(2, 4), torch.ones(2, 4)\n"
        f"    return {returned}\n"
    )
    assert main(["--model", f"{name}:make", "--placers", "single", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert "give a key, a list of keys or a function of what it returns" in error
    assert "several inputs are one tuple: (module, (x, y))" in error
