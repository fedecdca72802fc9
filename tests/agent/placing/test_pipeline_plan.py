"""`place(..., pipeline=...)` finds what `evaluate.py --pipeline` finds; the inputs may be one batch."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agent import PipelinePlan, place
from agent.bounds.lower_bound import bound_s
from agent.commands.evaluate import main
from agent.evaluation.inputs import read_given
from agent.pipeline.view import pipeline_advice
from agent.placers.base import PIPELINE_PLACERS, Budget
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import PipelineError
from envs.problem import Problem
from graphs.system.numbers import four_digits
from tests.agent.placing.pipeline_cases import CLUSTER, GRAPH, PIPELINE, make


def make_wide() -> tuple[nn.Module, Tensor]:
    """Makes a model whose updates take longer than its batch, so that microbatches take as long as that."""
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))), torch.zeros(32, 512)


@pytest.fixture(scope="module")
def plan() -> PipelinePlan:
    return place(GRAPH, cluster=CLUSTER, pipeline=PIPELINE, budget=60)


def test_a_plan_of_a_pipeline_says_what_it_is_worth(plan: PipelinePlan) -> None:
    objective = PipelineObjective(Problem(GRAPH, CLUSTER), PIPELINE)
    assert plan.placer == "refine"
    assert plan.pipeline == PIPELINE
    assert plan.step_time.total_s == objective.pipelined.simulate(plan.stages).total_s
    assert plan.lower_bound_s == bound_s(objective) <= plan.step_time.total_s
    alone = PIPELINE_PLACERS["single"].place(objective, Budget(2), np.random.default_rng(0))
    assert plan.single.total_s == alone.step_time.total_s
    assert plan.data_parallel.step_s == objective.data_parallel().step_s
    assert (plan.placement.stage_of == plan.stages.stage_of).all()
    assert [row.stage for row in plan.table()] == [0, 1]
    assert 1 <= plan.evaluations <= 60
    first, *others = str(plan).splitlines()
    assert first == pipeline_advice(2, plan.step_time, plan.baselines)
    assert (
        others[0]
        == f"{GRAPH.name} on 4xv100:2 (uncalibrated) by refine: 2 stages, 8 microbatches, schedule 1f1b"
    )
    assert f"{four_digits(plan.step_time.throughput_per_s)} microbatches a second" in others[1]
    assert plan.explain().startswith(first)
    assert "stage 1 on gpu" in plan.explain()


def test_the_advice_is_what_is_fastest_and_fits(plan: PipelinePlan) -> None:
    step, baselines = plan.step_time, plan.baselines
    total_s = 0.5 * min(plan.single.total_s, plan.data_parallel.step_s)
    fast, slow = replace(step, total_s=total_s), replace(step, total_s=100 * plan.single.total_s)
    ratio = plan.single.total_s / total_s
    assert "use the pipeline: 2x as fast as " in pipeline_advice(2, fast, baselines)
    assert f"{ratio:.3g}x as fast as one device" in pipeline_advice(2, fast, baselines)
    assert "x as fast as the pipeline" in pipeline_advice(2, slow, baselines)
    assert "no memory for the pipeline" in pipeline_advice(2, replace(fast, fits=False), baselines)
    assert "the pipeline" not in pipeline_advice(1, plan.single, baselines)
    none = replace(
        baselines,
        single=replace(plan.single, fits=False),
        data_parallel=replace(plan.data_parallel, fits=False),
    )
    expected = "use the pipeline: no memory for one device, no memory for data parallelism"
    assert pipeline_advice(2, fast, none) == expected
    assert pipeline_advice(2, replace(fast, fits=False), none).startswith("nothing found has the memory")


def test_the_baselines_of_a_cut_batch_are_those_of_the_whole_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, batch = make_wide()
    whole = place(module, batch, cluster="4xv100", host="graph", placer="single")
    plan = place(module, batch, cluster="4xv100", host="graph", pipeline="1f1b", split=4, budget=60)
    assert plan.single.total_s == pytest.approx(whole.single_s)
    assert plan.data_parallel.step_s == whole.data_parallel.seconds_per_batch
    assert str(plan).startswith("use data parallelism: ")
    assert f"{four_digits(1e3 * whole.single_s)} ms a step, the batch uncut" in str(plan)
    assert "on 4 devices, each a whole batch of its own" in str(plan)
    words = ["--model", f"{__name__}:make_wide", "--pipeline", "1f1b", "--split", "4", "--cluster", "4xv100"]
    words += ["--host", "graph"]
    assert main([*words, "--placers", "equal-time", "--out", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "results.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    ratio = float(row["step_time_s"]) / float(row["ratio_to_single"])
    assert ratio == pytest.approx(whole.single_s)
    assert "use data parallelism: " in capsys.readouterr().out
    assert "Use data parallelism" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


class OfFew(nn.Sequential):
    """Runs with microbatches alone."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 32:
            raise RuntimeError("too many")
        return super().forward(x)


def make_of_few() -> tuple[nn.Module, Tensor]:
    return OfFew(*(nn.Linear(8, 8) for _ in range(4))), torch.ones(64, 8)


def test_a_whole_batch_that_is_not_compared_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, batch = make_of_few()
    plan = place(module, batch, cluster=CLUSTER, pipeline="1f1b", split="auto", budget=60)
    assert capsys.readouterr().err.count("it returns no loss") == 1
    (line,) = (line for line in str(plan).splitlines() if line.startswith("one device: "))
    assert ", cut, as the whole batch is not compared: model 'OfFew' cannot be captured: " in line
    assert "RuntimeError: too many" in line
    words = ["--model", f"{__name__}:make_of_few", "--pipeline", "1f1b", "--split", "auto"]
    words += ["--cluster", "4xv100:2", "--placers", "equal-time", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.err.count("it returns no loss") == 1
    (explained,) = (tmp_path / "out").glob("**/*.explain.txt")
    assert "cut, as the whole batch is not compared: model 'make_of_few' cannot" in explained.read_text()
    small = replace(CLUSTER, devices=tuple(replace(each, memory_bytes=4e5) for each in CLUSTER.devices))
    wide = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2)))
    plan = place(wide, torch.ones(512, 64), cluster=small, pipeline="1f1b", split=32, budget=60)
    assert "a step, cut, as the whole batch does not fit" in str(plan)


def test_a_plan_of_a_pipeline_is_saved_and_scored_again(plan: PipelinePlan, tmp_path: Path) -> None:
    plan.save_all(tmp_path / "mine")
    plan.trace(tmp_path / "trace.json")
    names = ["refine.explain.txt", "refine.json", "refine.stages.csv", "refine.trace.json"]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == names
    assert (tmp_path / "trace.json").read_text() == (tmp_path / "mine" / "refine.trace.json").read_text()
    saved = json.loads((tmp_path / "mine" / "refine.json").read_text())
    assert saved["device_of"] == plan.device_of
    assert set(saved["stage_of"].values()) == {0, 1}


def test_place_finds_what_an_evaluation_of_a_split_batch_finds(tmp_path: Path) -> None:
    words = f"--model {make.__module__}:make --split 6 --cluster 4xv100 --pipeline gpipe --placers refine"
    assert main([*words.split(), "--seeds", "1", "--budget", "40", "--out", str(tmp_path)]) == 0
    with (tmp_path / "results.csv").open() as file:
        (row,) = csv.DictReader(file)
    found = place(*make(), name="make", cluster="4xv100", pipeline="gpipe", split=6, budget=40)
    assert (row["microbatches"], found.pipeline.microbatches) == ("6", 6)
    assert float(row["step_time_s"]) == pytest.approx(found.step_time.total_s)
    halves = {key: value[:2] for key, value in make()[1].items()}
    assert found.graph.n_ops == place(make()[0], halves, name="make", pipeline="gpipe", budget=1).graph.n_ops
    assert found.graph.flops.sum() == place(make()[0], halves, pipeline="gpipe", budget=1).graph.flops.sum()


@pytest.mark.parametrize("devices", [None, "torchrun"])
def test_compile_runs_no_pipeline(plan: PipelinePlan, devices: str | None) -> None:
    with pytest.raises(PipelineError, match=r"^compile runs no pipeline; run plan.pipeline_stages\(mod"):
        plan.compile(nn.Linear(2, 2), devices=devices, lr=0.1)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("recompute", [7], "there is no stage 7; the stages are 0 to 1"),
        ("actions", ["FB", "FB"], "unknown key 'actions'; known keys are"),
        ("stage_of", {GRAPH.op_names[-1]: 0}, "has no stage; give every forward op one"),
    ],
)
def test_a_placement_that_the_pipeline_cannot_run_is_one_line_when_it_is_read(
    plan: PipelinePlan, key: str, value: object, message: str, tmp_path: Path
) -> None:
    plan.save(tmp_path / "mine.json")
    saved = json.loads((tmp_path / "mine.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps(saved | {key: value}))
    with pytest.raises(ValueError, match=message) as raised:
        read_given([str(tmp_path / "mine.json")], [GRAPH], [CLUSTER], PIPELINE)
    assert str(raised.value).startswith(f"{tmp_path / 'mine.json'}: ")


def test_stages_of_sources_and_updates_are_said_to_be_ignored(
    plan: PipelinePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.save(tmp_path / "mine.json")
    saved = json.loads((tmp_path / "mine.json").read_text())
    source = GRAPH.op_names[int(GRAPH.is_source.argmax())]
    saved["stage_of"][source] = 1
    (tmp_path / "mine.json").write_text(json.dumps(saved))
    read_given([str(tmp_path / "mine.json")], [GRAPH], [CLUSTER], PIPELINE)
    assert f"stages of 1 parameters, inputs and updates, such as '{source}', are" in capsys.readouterr().err
