"""Trials: what is compiled, and what a trial depends on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from agent.placers.base import PLACERS, Budget, Placer
from agent.placing.trial_runner import TrialRunner, warm_up_graph
from envs.objective import Objective
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.op_graph import build_graph
from graphs.system.running_time import running_cpu_s
from tests.agent.placement_cases import GB, make_cluster, training_graph

ROOT = Path(__file__).parents[3]
PROBLEM = Problem(training_graph(2, 2), make_cluster(2))

LOADED = """
import sys, time
from dataclasses import replace
import numpy as np
from envs.placements.placement import Placement
from numba.core.caching import FunctionCache
from agent.placing.trial_runner import open_policy
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.worker import Worker
from agent.placers.base import Budget
from envs.pipeline.pipeline import Pipeline
from tests.agent.placement_cases import GB, make_cluster, training_graph

seconds, load_overload = [0.0], FunctionCache.load_overload

def load_for_long(cache, *arguments):
    seconds[0] += 1000.0
    return load_overload(cache, *arguments)

FunctionCache.load_overload = load_for_long
time.perf_counter = time.process_time = lambda: seconds[0]
graph, plain = training_graph(6, 3, name="g"), make_cluster(2, name="plain")
slowed = tuple(replace(device, overlap_slowdown=1.5) for device in plain.devices)
clusters = {
    "steps": (
        make_cluster(2, name="tight", memory_bytes=10 * GB),
        make_cluster(3, name="roomy", memory_bytes=1e12),
        make_cluster(2, name="fifo", schedule="fifo"),
        make_cluster(2, name="links", n_half_bytes=1e5),
        replace(plain, name="slowed", devices=slowed),
    ),
    "pipelines": (
        make_cluster(2, name="pair", sharing="pair"),
        make_cluster(2, sharing="none", n_half_bytes=1e5),
    ),
}
what, *placers = sys.argv[1:]
spec = EvaluationSpec(
    graphs=(graph,),
    clusters=clusters[what],
    placers=tuple(placers),
    orders=("topo", "b-level"),
    budget=Budget(200, 3600.0),
    policy=open_policy("pretrained"),
    given={("g", "tight", "mine"): Placement(np.zeros(graph.n_ops, dtype=np.int64))},
    pipeline=Pipeline("1f1b", 2) if what == "pipelines" else None,
)
worker, n_loading = Worker(spec), 0
for task in spec.tasks():
    before = seconds[0]
    trial, _ = worker.run(task)
    n_loading += seconds[0] > before
    if trial.wall_s or trial.cpu_s:
        sys.exit(f"{task} takes {trial.wall_s:g} s, {trial.cpu_s:g} s of the processor")
print(n_loading)
"""
"""Prints how many trials load or compile kernels, on clocks that go on at nothing else: 1,000 s for each."""


@pytest.mark.parametrize(
    "arguments",
    [
        ("steps", "policy-refine"),
        ("steps", "annealing", "rollout", "heft", "policy-beam", "data-parallel"),
        ("pipelines", "equal-time", "refine", "data-parallel"),
    ],
    ids=" ".join,
)
def test_compiling_and_loading_kernels_is_no_time_of_a_trial(arguments):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1


def test_a_search_makes_as_many_evaluations_where_its_kernels_are_compiled_first():
    """The budget is one of processor seconds, as experiments have them."""

    def search_with(own_kernel):
        def draw(search, rng):
            while search.left:
                own_kernel(search.problem.op_seconds)
                search.score(rng.integers(search.problem.n_devices, size=(8, search.problem.graph.n_ops)))

        return draw

    compiles_late = njit(lambda op_seconds: np.sort(op_seconds.ravel()).sum())
    first, second = (
        Placer("draw", search_with(compiles_late), uses_rng=True).place(
            PROBLEM, Budget(None, 0.1, running_cpu_s), np.random.default_rng(0)
        )
        for _ in range(2)
    )
    assert first.evaluations > second.evaluations / 3
    assert first.cpu_s < 0.2


def test_a_placer_is_warmed_up_once(monkeypatch):
    placed = []
    single = PLACERS["single"]
    runner = TrialRunner()
    place = type(single).place

    def note(placer, objective, budget, rng):
        placed.append(getattr(objective, "problem", objective).graph.name)
        return place(placer, objective, budget, rng)

    monkeypatch.setattr(type(single), "place", note)
    fifo = Problem(PROBLEM.graph, make_cluster(2, schedule="fifo"))
    for problem in (PROBLEM, PROBLEM, fifo):
        runner.place(single, Objective(problem), Budget(5), order="", seed=0)
    toy = PROBLEM.graph.name
    assert placed == ["warm-up", toy, toy, toy]


@pytest.mark.parametrize("n_devices", [1, 2, 8])
def test_any_cluster_can_be_warmed_up(n_devices):
    cluster = make_cluster(n_devices, memory_bytes=1.0)
    problem = Problem(PROBLEM.graph, cluster)
    found = TrialRunner().place(PLACERS["annealing"], Objective(problem), Budget(20), order="", seed=0)
    assert not found.feasible


def test_a_trial_depends_on_its_arguments_alone():
    what, runner = (PLACERS["annealing"], Objective(PROBLEM), Budget(50)), TrialRunner()
    first, again = (runner.place(*what, order="", seed=1) for _ in range(2))
    fresh = TrialRunner().place(*what, order="", seed=1)
    assert (first.placement.device_of == again.placement.device_of).all()
    assert (first.placement.device_of == fresh.placement.device_of).all()


def test_a_given_placement_is_one_evaluation():
    found = TrialRunner().score(Objective(PROBLEM), Placement(np.ones(PROBLEM.graph.n_ops, dtype=np.int64)))
    assert found.evaluations == 1
    assert (found.placement.device_of == 1).all()


def test_a_cluster_of_any_speed_can_be_warmed_up_on():
    """The graph is so small that a device of one flop a second suits it."""
    graph = build_graph(
        "tiny", "toys", [{"name": "a", "flops": 1.0}, {"name": "b", "flops": 1.0}], [(0, 1, [1])]
    )
    usual = make_cluster(2)
    devices = tuple(
        replace(device, flops_per_s=1.0, bytes_per_s=1.0, launch_s=0.0) for device in usual.devices
    )
    slow = replace(usual, devices=devices, bytes_per_s=np.ones((2, 2)))
    objective = Objective(Problem(graph, slow))
    found = TrialRunner().place(PLACERS["annealing"], objective, Budget(10), order="", seed=0)
    assert found.step_time.total_s == 2.0


def test_the_warm_up_graph_has_forward_backward_and_weights():
    graph = warm_up_graph()
    assert set(graph.phases) == {"forward", "backward"}
    assert len(graph.units) == 24
    assert graph.resident_bytes.sum() < GB
