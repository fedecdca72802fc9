"""What is handed over with a placement: known answers on hand-made graphs, then real models."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from agent import place
from agent.placing.handover.device_map import project
from agent.placing.handover.explain import advice_line, data_parallel_changes, explain, explain_lines
from agent.placing.handover.files import granularity_lines
from agent.placing.handover.trace import step_trace
from envs.cluster.presets import get_cluster
from envs.objective import fastest_single
from envs.pipeline.pipeline import Pipeline
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_family
from graphs.granularity import with_granularity
from graphs.op_graph import build_graph
from tests.agent.placement_cases import make_cluster
from tests.envs.hand_made_problems import chain_problem


def test_a_trace_has_each_op_and_copy_at_its_time():
    problem, device_of = chain_problem(), np.array([0, 1])
    trace = step_trace(problem, device_of, simulate_problem(problem, device_of))
    events = trace["traceEvents"]
    spans = {(e["pid"], e["name"]): (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert spans == {(0, "a"): (0, 2e6), (0, "b"): (2.75e6, 0.5e6), (1, "a"): (2e6, 0.5e6)}


def explain_cut_chain():
    problem, device_of = chain_problem(), np.array([0, 1])
    return explain(problem, device_of, simulate_problem(problem, device_of))


def test_the_copy_is_what_bounds_a_chain_that_is_cut():
    found = explain_cut_chain()
    assert found.total_s == 3.25
    assert found.no_copies_s == pytest.approx(2.5)
    assert found.critical_path_s == 2.5
    assert found.balanced_s == pytest.approx(1.0)
    assert (found.link, found.link_busy_s) == ("slow out", 0.5)
    assert (found.single, found.single_s) == ("fast", 1.5)
    assert found.advice == "one device"
    assert advice_line(found) == (
        "use one device, fast: 1,500 ms; this placement saves nothing, as copies bound it"
    )


def test_a_step_that_waits_for_copies_of_an_idle_link_says_so():
    found = replace(explain_cut_chain(), link_busy_s=0.05)
    assert found.bottleneck == "link"
    assert " ".join(advice_line(found).split()).endswith("saves nothing, as waiting for copies bounds it")
    line = "waiting for copies bounds it: slow out is busy for 50 ms of 3,250 ms"
    assert line in explain_lines(found)


def test_a_host_that_issues_slowly_is_what_bounds_a_step():
    problem = chain_problem()
    slow = replace(problem, cluster=replace(problem.cluster, issue_s=4.0))
    device_of = np.array([1, 1])
    found = explain(slow, device_of, simulate_problem(slow, device_of))
    assert (found.bottleneck, found.total_s, found.no_host_s) == ("host", 8.5, 1.5)
    lines = explain_lines(found)
    assert "the host bounds it: issued at once, as by a CUDA graph, it takes 1,500 ms" in lines
    assert "with ops issued at once: 1,500 ms" in lines
    assert "with ops issued at once" not in "\n".join(explain_lines(explain_cut_chain()))


def short_graph(flops=1e6, name="short"):
    """Four chains of eight ops, which four devices run four times as fast as one."""
    ops = [{"name": str(op), "flops": flops, "bytes_moved": 1e3} for op in range(32)]
    return build_graph(name, "", ops, [(op, 4.0, [op + 4]) for op in range(28)])


UNCOUNTED, LONG, SHORT = " (not counted: --host eager)", "0.064 ms", "0.016 ms"


@pytest.mark.parametrize(
    ("host", "said", "devices", "advice"),
    [
        ("eager", "", LONG, "use data parallelism: 4.00 times as fast per batch as this placement"),
        ("none", UNCOUNTED, SHORT, "as a CUDA graph, use this placement: 4.00 times as fast as one device"),
        ("graph", None, SHORT, "use data parallelism: 1.41 times as fast per batch as this placement"),
    ],
)
def test_a_step_that_its_host_bounds_is_told_first_with_the_remedy(host, said, devices, advice):
    first = (
        "short on toy"
        if said is None
        else (
            f"the host{said} needs 0.8384 ms to issue the ops, the devices {devices}: capture the step as a "
            "CUDA graph (--host graph); until then no placement makes it shorter than that"
        )
    )
    settings = {"cluster": make_cluster(4), "placer": "refine", "budget": 200, "host": host}
    plan = place(short_graph(), **settings)
    told, explained = " ".join(str(plan).split()), " ".join(plan.explain().split())
    assert told.startswith(first)
    assert explained.startswith(advice if said is None else f"{first} {advice}")
    assert advice in told
    assert "CUDA graph (" not in str(place(short_graph(1e9, "long"), **settings))


def test_the_hosts_of_a_pipeline_issue_their_shares():
    for host, said in (("eager", ""), ("none", " (not counted: --host eager)")):
        plan = place(
            short_graph(), cluster=make_cluster(2, sharing="pair"), pipeline=Pipeline("gpipe", 4), host=host
        )
        first = f"the host{said} needs 1.677 ms to issue the ops"  # each of two half of four steps
        assert plan.explain().startswith(first)
        assert str(plan).startswith(first)


def test_the_advice_is_data_parallelism_only_where_it_is_faster():
    found = explain_cut_chain()
    batch = replace(found.data_parallel, devices=(0, 1), step_s=2.0, fits=True)
    twice = replace(found, data_parallel=batch)
    first, *_ = lines = advice_line(replace(twice, changes="its step averages 2 such batches")).splitlines()
    assert first == "use data parallelism: 3.25 times as fast per batch as this placement; its step"
    assert lines[1:] == ["averages 2 such batches"]
    fast = replace(found, total_s=0.75)
    assert advice_line(fast) == "use this placement: 2.00 times as fast as one device, fast"
    assert replace(fast, data_parallel=batch).advice == "placement"
    assert replace(fast, bottleneck="memory", single=None, single_s=None).advice in (
        "data parallel",
        "memory",
    )


NORM, INPUT = {"type": "aten._native_batch_norm_legit_functional"}, {"type": "input", "shape": [32, 3]}
BACKWARD = {"phase": "backward"}


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ([BACKWARD], "its step averages 4 such batches; losses across samples see one alone"),
        ([INPUT, NORM, BACKWARD], "4 such batches; batch norm and losses across samples see one alone"),
        ([{"type": "aten._native_batch_norm_legit_no_training"}, BACKWARD], "batches; losses across"),
        ([INPUT, {"type": "input", "shape": []}, BACKWARD], "4 such batches; losses"),
        ([{**INPUT, "shape": [30, 3]}, BACKWARD], "(this one of 30 is not cut evenly); losses"),
        ([{**INPUT, "shape": [1, 8]}, BACKWARD], "(this one of 1 is not cut evenly)"),
        ([INPUT, {**INPUT, "shape": [2, 90]}, BACKWARD], "(inputs of this one share no dimension to cut)"),
        ([INPUT, NORM], "it runs 4 such batches at once, none sooner than one device does"),
    ],
)
def test_data_parallelism_says_what_it_changes(ops, said):
    named = [{"name": str(index), **op} for index, op in enumerate(ops)]
    assert said in data_parallel_changes([build_graph("g", "", named, [])], [4])


def test_several_graphs_are_changed_by_their_numbers_of_replicas():
    graphs = [build_graph("g", "", [{"name": "a", **op}], []) for op in (BACKWARD, NORM)]
    said = "its step averages 2 to 4 such batches; batch norm and losses across samples see one alone"
    assert data_parallel_changes(graphs, [4, 2]) == said


def test_the_fastest_single_device_has_the_memory_or_is_marked():
    assert fastest_single(chain_problem(memory_bytes=5.0)) == (0, 3.0, True)
    assert fastest_single(chain_problem().with_memory(np.full(2, 5.0))) == (1, 1.5, False)


def test_a_map_names_the_coarsest_modules_and_keeps_their_ops():
    ops = [{"name": name, "module": name[:-1], "flops": 1e9} for name in ("a.x1", "a.y1", "b1")]
    problem = Problem(build_graph("g", "", ops, [(0, 4.0, [1]), (1, 4.0, [2])]), make_cluster(2))
    found = project(problem, np.array([0, 0, 1]))
    assert (dict(found.devices), found.n_changed) == ({"a": 0, "b": 1}, 0)
    assert found.total_s == found.placed_s


def test_an_explanation_says_what_blocks_cost():
    graph = load_family("moe")[1]
    plan = place(graph, placer="annealing", budget=500, granularity="block")
    *lines, cost = plan.explain().splitlines()
    assert all(len(line) <= 80 for line in (*lines, cost))
    assert cost.startswith("refine by op finds ")
    assert cost.endswith(" times as fast")
    problem = Problem(with_granularity(graph, "block"), get_cluster("4xv100"))
    assert granularity_lines(problem, 1e-6) == ["refine by op finds no shorter step in 1,000 evaluations"]
    by_op = place(graph, placer="heft", budget=2)
    assert by_op.explain().splitlines() == explain_lines(by_op.explanation)


def test_all_that_is_handed_over_is_saved(tmp_path):
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plan = place(module, torch.randn(4, 8), cluster="2xk80", placer="heft", budget=5)
    plan.save_all(tmp_path)
    assert json.loads((tmp_path / "heft.device_map.json").read_text()) == dict(plan.device_map().devices)
    kinds = ("json", "device_map.json", "trace.json", "ops.csv", "memory.csv", "explain.txt")
    assert {path.name for path in tmp_path.iterdir()} == {
        "graph.json.gz",
        *(f"heft.{kind}" for kind in kinds),
    }
