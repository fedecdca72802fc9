"""Requests: the pipelines that are tried for one, and what cannot be asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from agent import Pipeline, place
from agent.commands.evaluate import main
from agent.pipeline.choice import counts_to_try
from envs.pipeline.pipeline import CHOSEN_FROM
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from tests.agent.evaluation_cases import rows_of
from tests.agent.placing.pipeline_cases import CLUSTER, GRAPH, PIPELINE, make


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
    peak = free.step_time.peak_bytes.max()
    devices = tuple(replace(each, memory_bytes=0.95 * peak) for each in CLUSTER.devices)
    small = replace(CLUSTER, devices=devices)
    found = place(GRAPH, cluster=small, pipeline=wanted, placer="equal-time")
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
