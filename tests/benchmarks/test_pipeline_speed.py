"""Speed of simulating pipelined steps and of scoring plans of pipelines, in processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agent.pipeline.annealing import shifted
from agent.pipeline.search import PipelineSearch
from agent.placers.base import Budget
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.dataset import load_family
from tests.benchmarks.cases import seconds_of, training_graph, v100s
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure

pytestmark = pytest.mark.benchmark(timer=time.process_time)
Record = Callable[[Figure], None]
REPEATS = 20


def problem_of(n_ops: int, n_devices: int) -> Problem:
    return Problem(training_graph(n_ops), v100s(n_devices, "program", "pair"))


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(REPEATS):
            call()

    return calls


@pytest.mark.parametrize("family", ["gpt", "bert", "inception", "llama", "ptb", "cifar10"])
def test_64_microbatches(stopwatch: Stopwatch, record: Record, family: str) -> None:
    graph = max(load_family(family), key=lambda each: each.n_ops)
    problem = Problem(graph, v100s(4, "program", "pair"))
    objective = PipelineObjective(problem, Pipeline("1f1b", 64))
    stages = objective.stages(objective.balanced(range(4)))
    step = repeated(lambda: step_time_s(problem, stages.device_of))
    step()
    one_s = seconds_of(step, rounds=20, timer=time.process_time) / REPEATS
    record(
        Figure(
            "A step of 64 microbatches, 1f1b, 4 devices, without memory",
            f"{family}, {graph.n_ops:,} ops",
            stopwatch(repeated(lambda: objective.pipelined.step_time_s(stages)), rounds=20) / REPEATS * 1e6,
            "us",
            one_s * 1e6,
            "the step of one microbatch, not pipelined; the limit is five of these",
            5 * one_s * 1e6,
        )
    )


@pytest.mark.parametrize(
    ("n_ops", "n_devices", "microbatches"),
    [(1_500, 4, 64), (8_000, 4, 8), (4_000, 8, 64), (8_000, 8, 64), (50_000, 64, 256)],
)
def test_plans_with_a_moved_cut(
    stopwatch: Stopwatch, record: Record, n_ops: int, n_devices: int, microbatches: int
) -> None:
    problem, rng = problem_of(n_ops, n_devices), np.random.default_rng(0)
    ample = replace(problem, cluster=replace(problem.cluster, name="ample")).with_memory(
        np.full(n_devices, 1e15)
    )
    times = []
    for each in (problem, ample):
        objective = PipelineObjective(each, Pipeline("1f1b", microbatches))
        search = PipelineSearch(objective, Budget(10**9))
        start = objective.balanced(range(n_devices))
        cuts = [
            shifted(search, start, int(rng.integers(1, n_devices)), int(rng.integers(1, 9)))
            for _ in range(20)
        ]

        plans = [objective.stages(each) for each in (start, *cuts) if each is not None]

        def score(pipelined: PipelinedProblem = objective.pipelined, plans: list[Stages] = plans) -> None:
            for plan in plans:
                pipelined.score(plan)

        score()
        times.append(score)

    n = len(plans)
    record(
        Figure(
            "Plans with a moved cut, 1f1b, one core, with memory",
            f"{n_ops:,} ops, {n_devices} devices, {microbatches} microbatches",
            n / stopwatch(times[0], rounds=5),
            "evaluations/s",
            n / seconds_of(times[1], rounds=5, timer=time.process_time),
            "the same where memory is no limit, so that it is not simulated",
        )
    )
