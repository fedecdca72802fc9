"""Pipelines from Python: `place(..., pipeline=...)` finds what `evaluate.py --pipeline` finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agent import Pipeline, PipelinePlan, place
from agent.bounds.lower_bound import bound_s
from agent.commands.evaluate import main
from agent.evaluation.inputs import read_given
from agent.pipeline.choice import counts_to_try, to_try
from agent.pipeline.view import pipeline_advice
from agent.placers.base import PIPELINE_PLACERS, Budget
from agent.placing.request import Request
from envs.cluster.presets import get_cluster
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import CHOSEN_FROM, PipelineError
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.system.errors import four_digits
from tests.agent.evaluation_cases import rows_of

GRAPH = load_family("gpt")[0]
PIPELINE = Pipeline("1f1b", 8)
CLUSTER = get_cluster("4xv100:2")


class Classifier(nn.Module):
    """A perceptron that returns the loss of its labels, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make() -> tuple[nn.Module, dict[str, Tensor]]:
    """Makes a model and a batch of 12, for `--model`."""
    return Classifier(), {"features": torch.zeros(12, 8), "labels": torch.zeros(12, dtype=torch.long)}


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
    (row,) = rows_of(tmp_path / "out")
    ratio = float(row["step_time_s"]) / float(row["ratio_to_single"])
    assert ratio == pytest.approx(whole.single_s)
    assert "use data parallelism: " in capsys.readouterr().out


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


def test_a_plan_of_a_pipeline_is_saved(plan: PipelinePlan, tmp_path: Path) -> None:
    plan.save_all(tmp_path / "mine")
    plan.trace(tmp_path / "trace.json")
    names = ["refine.explain.txt", "refine.json", "refine.stages.csv", "refine.trace.json"]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == names
    assert (tmp_path / "trace.json").read_text() == (tmp_path / "mine" / "refine.trace.json").read_text()
    saved = json.loads((tmp_path / "mine" / "refine.json").read_text())
    assert saved["device_of"] == plan.device_of
    assert set(saved["stage_of"].values()) == {0, 1}


def test_place_finds_what_an_evaluation_of_a_split_batch_finds(tmp_path: Path) -> None:
    words = f"--model {__name__}:make --split 6 --cluster 4xv100 --pipeline gpipe --placers refine"
    assert main([*words.split(), "--seeds", "1", "--budget", "40", "--out", str(tmp_path)]) == 0
    (row,) = rows_of(tmp_path)
    found = place(*make(), name="make", cluster="4xv100", pipeline="gpipe", split=6, budget=40)
    assert (row["microbatches"], found.pipeline.microbatches) == ("6", 6)
    assert float(row["step_time_s"]) == pytest.approx(found.step_time.total_s)


def test_compile_runs_no_pipeline(plan: PipelinePlan) -> None:
    with pytest.raises(PipelineError, match=r"^compile runs no pipeline; run plan.pipeline_stages\(mod"):
        plan.compile(nn.Linear(2, 2), devices="torchrun", lr=0.1)


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
    file = tmp_path / "mine.json"
    plan.save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=message) as raised:
        read_given([str(file)], [GRAPH], [CLUSTER], PIPELINE)
    assert str(raised.value).startswith(f"{file}: ")


def test_stages_of_sources_and_updates_are_said_to_be_ignored(
    plan: PipelinePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.json"
    plan.save(file)
    saved = json.loads(file.read_text())
    source = GRAPH.op_names[int(GRAPH.is_source.argmax())]
    saved["stage_of"][source] = 1
    file.write_text(json.dumps(saved))
    read_given([str(file)], [GRAPH], [CLUSTER], PIPELINE)
    assert f"stages of 1 parameters, inputs and updates, such as '{source}', are" in capsys.readouterr().err


@pytest.fixture(scope="module")
def of_replicas() -> PipelinePlan:
    pipeline = Pipeline("1f1b", 8, replicas=2, shard_optimizer=True)
    return place(GRAPH, cluster="4xv100", pipeline=pipeline, budget=40)


def test_a_plan_holds_for_the_devices_of_all_replicas(of_replicas: PipelinePlan, tmp_path: Path) -> None:
    advice, shape, *_ = str(of_replicas).splitlines()
    assert "2 replicas of the pipeline" in advice
    assert shape.endswith("2 replicas of 2 stages, 8 microbatches, schedule 1f1b, optimizer sharded")
    assert of_replicas.lower_bound_s == bound_s(of_replicas.objective) <= of_replicas.step_time.total_s
    assert of_replicas.stages.groups == of_replicas.placement.groups == ((0, 1), (2, 3))
    assert [(row.stage, row.device) for row in of_replicas.table()] == [
        (stage, f"gpu{stage + 2 * replica}") for replica in range(2) for stage in range(2)
    ]
    step = of_replicas.step_time
    assert (step.busy_s[:2] == step.busy_s[2:]).all()
    assert (step.peak_bytes[:2] == step.peak_bytes[2:]).all()
    assert step.bubble_share == pytest.approx(1 - step.busy_s.sum() / (4 * step.total_s))
    assert {(each.device // 2, each.microbatch // 4) for each in step.actions if each.kind >= 0} == {
        (0, 0),
        (1, 1),
    }
    assert sum(each.kind == 0 for each in step.actions) == 2 * 8
    assert "gpu0 " in of_replicas._ops_line()
    counts = [int(part.split()[-1]) for part in of_replicas._ops_line().partition(";")[0].split(",")]
    assert counts[:2] == counts[2:]
    assert of_replicas.explain().count("\nstage ") == 2
    of_replicas.save_all(tmp_path)
    of_replicas.plot(tmp_path / "step.png")
    named = json.loads((tmp_path / "refine.json").read_text())
    assert named["groups"] == [["gpu0", "gpu1"], ["gpu2", "gpu3"]]
    given = read_given([str(tmp_path / "refine.json")], [GRAPH], [of_replicas.cluster], of_replicas.pipeline)
    (again,) = given.values()
    assert of_replicas.objective.simulate(again).total_s == step.total_s


def test_sharding_divides_states_and_updates() -> None:
    whole, parts = (
        place(
            GRAPH,
            cluster="4xv100",
            pipeline=Pipeline("1f1b", 8, replicas=2, shard_optimizer=shards),
            placer="equal-time",
        )
        for shards in (False, True)
    )
    held = [sum(row.resident_bytes for row in each.table()[:2]) for each in (whole, parts)]
    assert held[1] == pytest.approx(0.75 * held[0], rel=1e-3)  # Adam: half of it is states
    saved = whole.step_time.peak_bytes - parts.step_time.peak_bytes
    np.testing.assert_allclose(saved.sum(), 2 * (held[0] - held[1]), rtol=1e-6)


def test_auto_tries_the_divisors_and_the_verdict_compares_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = place(GRAPH, cluster="4xv100", pipeline=Pipeline("1f1b", 8, replicas="auto"), budget=90)
    alone = place(GRAPH, cluster="4xv100", pipeline=Pipeline("1f1b", 8), budget=30)
    steps: Mapping[int | str, float] = {key: each.total_s for key, each in found.best_steps.items()}
    assert steps.keys() == {1, 2, 4}
    assert steps[1] == alone.step_time.total_s
    assert steps[4] == found.data_parallel.step_s == found.step_time.total_s
    assert str(found).startswith("use data parallelism: ")
    assert "as fast as 2 replicas of pipelines" in str(found)
    assert "as fast as one pipeline" in str(found)
    assert "\none pipeline: " in str(found)
    assert all(line.endswith(" GiB") for line in str(found).splitlines()[2:7])
    assert "schedule 1f1b; replicas not compared (replicas='auto')" in str(alone)
    words = f"--model {__name__}:make --split 4 --cluster 4xv100 --pipeline 1f1b --replicas auto"
    assert main([*words.split(), "--placers", "equal-time", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert "2 replicas of 1f1b with 4 microbatches: " in told
    assert "pipeline 3 of 3: 4 replicas of " in told


def test_replicas_are_asked_for_with_a_pipeline() -> None:
    wanted = Request("1f1b", 8, replicas="2", shard_optimizer=True).wanted
    assert wanted == Pipeline("1f1b", 8, replicas=2, shard_optimizer=True)
    numbers = [each.replicas for each in to_try(Request("1f1b", 12, replicas="auto"), None, 8)]
    assert numbers == [1, 2, 4]
    for request, message in (
        (Request(replicas="2"), "replicas are those of a pipeline; give its schedule too"),
        (Request("1f1b", 8, replicas="two"), "replicas is 'two'; give a number, or auto"),
        (Request("1f1b", 8, replicas="0"), "0 replicas of 8 microbatches"),
    ):
        with pytest.raises(ValueError, match=message):
            _ = request.wanted


def make_four() -> tuple[nn.Module, dict[str, Tensor]]:
    module, batch = make()
    return module, {name: tensor[:4] for name, tensor in batch.items()}


def test_auto_chooses_the_schedule_and_the_microbatches_of_the_shortest_step(tmp_path: Path) -> None:
    each = {
        (schedule, count): place(*make_four(), cluster=CLUSTER, pipeline=schedule, split=count, budget=5)
        for count in counts_to_try(4, 2)
        for schedule in CHOSEN_FROM
    }
    best = min(each, key=lambda key: each[key].step_time.total_s)
    found = place(*make_four(), cluster=CLUSTER, pipeline="auto", split="auto", budget=5 * len(each))
    assert (found.pipeline.schedule, found.pipeline.microbatches) == best
    assert found.step_time.total_s == each[best].step_time.total_s
    assert found.evaluations == sum(plan.evaluations for plan in each.values())
    assert f"chosen from: {best[0]} with {best[1]} microbatches: " in found.explain()
    words = f"--model {__name__}:make_four --cluster 4xv100:2 --pipeline auto --split auto"
    words += f" --placers equal-time --budget {5 * len(each)}"
    assert main([*words.split(), "--out", str(tmp_path)]) == 0
    (row,) = rows_of(tmp_path)
    assert (row["pipeline"], int(row["microbatches"])) == best


def test_of_schedules_that_fit_the_shortest_is_chosen() -> None:
    wanted = Pipeline("auto", 8, may_recompute=False)
    free = place(GRAPH, cluster=CLUSTER, pipeline=wanted, placer="equal-time")
    small = Problem(GRAPH, CLUSTER).with_memory(np.full(2, 0.95 * free.step_time.peak_bytes.max()))
    found = place(GRAPH, cluster=small.cluster, pipeline=wanted, placer="equal-time")
    assert found.step_time.fits
    assert found.step_time.total_s > free.step_time.total_s
    assert f"{free.tried[0]}, out of memory" in found.tried


def test_numbers_of_microbatches_to_try_divide_the_batch_and_are_near_four_a_device() -> None:
    batches = {12: [2, 3, 4, 6, 12], 64: [2, 4, 8, 16, 32], 7: [1, 7], 3000: [5, 6, 8, 10, 12]}
    for batch, counts in batches.items():
        assert counts_to_try(batch, 2) == counts


def test_a_schedule_that_was_not_chosen_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^schedule 'auto' is chosen by place and evaluate\.py alone; use"):
        PipelinedProblem(Problem(GRAPH, CLUSTER), Pipeline("auto"))


@pytest.mark.parametrize("count", ["0", "1" * 5000])
def test_a_number_of_stages_that_is_none_is_one_short_line(count: str) -> None:
    with pytest.raises(ValueError, match="is no number of stages; use ") as raised:
        Pipeline(f"interleaved-1f1b:{count}")
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"pipeline": "2f2b"},
            "unknown schedule '2f2b'; use gpipe, 1f1b, interleaved-1f1b:V, zero-bubble or auto",
        ),
        (
            {"pipeline": "1f1b", "placer": "heft"},
            "placer 'heft' places one batch at a time, no pipelines; use single, annealing, ",
        ),
        ({"pipeline": "1f1b", "placer": "data-parallel"}, "'data-parallel' is no placement"),
        ({"pipeline": "1f1b", "cluster": "placeto-k80:2"}, "has schedule 'fifo'; a pipeline needs 'program'"),
        (
            {"pipeline": "interleaved-1f1b:99"},
            "needs 99 stages on a device, but graph 'Classifier' can be cut",
        ),
        ({"pipeline": "1f1b", "split": 5}, "a batch of 12 in dimension 0 cannot be split into 5 equal micro"),
        ({"pipeline": "1f1b", "split": 2, "batch_dim": 3}, "no input has a dimension 3"),
        ({"pipeline": PIPELINE, "split": 2}, "split is 2, but the pipeline has 8 microbatches; give one"),
        ({"pipeline": PIPELINE, "split": "auto"}, "split is auto, but the pipeline has 8 microbatches; give"),
        ({"pipeline": "1f1b", "split": "many"}, "split is 'many'; give a number of microbatches, or auto"),
        ({"pipeline": "auto", "split": "auto", "batch_dim": 2}, "no input has a dimension 2 that could be"),
        ({"pipeline": "1f1b", "split": 2, "split_inputs": ["x"]}, "no input is 'x'; the inputs are features"),
        ({"split": 2}, "split makes the microbatches of a pipeline; give a pipeline's schedule too"),
    ],
)
def test_wrong_arguments_are_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        place(*make(), **{"cluster": CLUSTER} | settings)
    assert "\n" not in str(raised.value)
