"""Trials: what is compiled, and what a trial depends on."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from agent.evaluation.config import EvaluationConfig
from agent.evaluation.inputs import make_spec
from agent.evaluation.worker import Worker
from agent.placers.base import PLACERS, Budget, Placer, PlacerError
from agent.placing.trial_runner import TrialRunner, make_placer, open_policy
from agent.policy import serialization
from envs.objective import Objective
from envs.problem import Problem
from graphs.io.graph_files import write_graphs
from graphs.op_graph import build_graph
from graphs.system.running_time import running_cpu_s
from tests.agent.placement_cases import make_cluster, training_graph

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
assert {"torch", "torch_geometric.nn"} <= sys.modules.keys(), "before the seconds of a placer count"
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


def test_an_evaluation_reads_the_policy_once_and_makes_it_once(tmp_path, monkeypatch):
    calls = []
    read, make = serialization._read_bytes, serialization.StoredPolicy.policy
    monkeypatch.setattr(serialization, "_read_bytes", lambda file: (calls.append(file.name), read(file))[1])
    monkeypatch.setattr(
        serialization.StoredPolicy, "policy", lambda stored: (calls.append("made"), make(stored))[1]
    )
    write_graphs(tmp_path / "graph.json", [training_graph(2, 1)])
    config = EvaluationConfig(
        graphs=(str(tmp_path / "graph.json"),), placers=("policy", "policy-sample"), seeds=1, budget=5
    )
    spec, _ = make_spec(config)
    worker = Worker(spec)
    for task in spec.tasks():
        worker.run(task)
    assert sorted(calls) == ["made", "policy.json", "policy.safetensors"]


def test_another_process_gets_the_same_bytes_and_makes_its_own_policy_on_arrival():
    opened = open_policy("pretrained")
    sent = pickle.dumps(opened)
    assert len(sent) < 2 * len(opened._weights)
    arrived = pickle.loads(sent)
    assert vars(arrived)["actor"] is not opened.actor
    assert arrived.digest == opened.digest
    weights, others = opened.actor.weights, arrived.actor.weights
    assert weights.keys() == others.keys()
    assert all((weights[name] == others[name]).all() for name in weights)


def test_placers_without_a_policy_need_none():
    assert make_placer("heft", None, "") is PLACERS["heft"]
    with pytest.raises(PlacerError, match="'policy' needs a policy"):
        make_placer("policy", None, "topo")
