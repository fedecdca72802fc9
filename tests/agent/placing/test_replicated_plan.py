"""Plans of replicas of pipelines hold for all groups of devices, and compare numbers of replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from agent import Pipeline, PipelinePlan, place
from agent.bounds.lower_bound import bound_s
from agent.commands.evaluate import main
from agent.evaluation.inputs import read_given
from agent.pipeline.choice import to_try
from agent.placing.request import Request
from tests.agent.placing.pipeline_cases import GRAPH, make


@pytest.fixture(scope="module")
def plan() -> PipelinePlan:
    pipeline = Pipeline("1f1b", 8, replicas=2, shard_optimizer=True)
    return place(GRAPH, cluster="4xv100", pipeline=pipeline, budget=40)


def test_a_plan_holds_for_the_devices_of_all_replicas(plan: PipelinePlan, tmp_path: Path) -> None:
    advice, shape, *_ = str(plan).splitlines()
    assert "2 replicas of the pipeline" in advice
    assert shape.endswith("2 replicas of 2 stages, 8 microbatches, schedule 1f1b, optimizer sharded")
    assert plan.lower_bound_s == bound_s(plan.objective) <= plan.step_time.total_s
    assert plan.stages.groups == plan.placement.groups == ((0, 1), (2, 3))
    assert [(row.stage, row.device) for row in plan.table()] == [
        (stage, f"gpu{stage + 2 * replica}") for replica in range(2) for stage in range(2)
    ]
    step = plan.step_time
    assert (step.busy_s[:2] == step.busy_s[2:]).all()
    assert (step.peak_bytes[:2] == step.peak_bytes[2:]).all()
    assert step.bubble_share == pytest.approx(1 - step.busy_s.sum() / (4 * step.total_s))
    assert {(each.device // 2, each.microbatch // 4) for each in step.actions if each.kind >= 0} == {
        (0, 0),
        (1, 1),
    }
    assert sum(each.kind == 0 for each in step.actions) == 2 * 8
    assert "gpu0 " in plan._ops_line()
    counts = [int(part.split()[-1]) for part in plan._ops_line().partition(";")[0].split(",")]
    assert counts[:2] == counts[2:]
    assert plan.explain().count("\nstage ") == 2
    plan.save_all(tmp_path)
    plan.plot(tmp_path / "step.png")
    named = json.loads((tmp_path / "refine.json").read_text())
    assert named["groups"] == [["gpu0", "gpu1"], ["gpu2", "gpu3"]]
    given = read_given([str(tmp_path / "refine.json")], [GRAPH], [plan.cluster], plan.pipeline)
    (again,) = given.values()
    assert plan.objective.simulate(again).total_s == step.total_s


def test_sharding_divides_states_and_updates(plan: PipelinePlan) -> None:
    whole = place(GRAPH, cluster="4xv100", pipeline=Pipeline("1f1b", 8, replicas=2), placer="equal-time")
    parts = place(
        GRAPH,
        cluster="4xv100",
        pipeline=Pipeline("1f1b", 8, replicas=2, shard_optimizer=True),
        placer="equal-time",
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
    words = f"--model {make.__module__}:make --split 4 --cluster 4xv100 --pipeline 1f1b --replicas auto"
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
