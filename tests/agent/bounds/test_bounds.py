"""Lower bounds: known answers, and never above what any placement reaches."""

from dataclasses import replace

import numpy as np
import pytest

from agent.bounds.lower_bound import device_weights, heads_and_tails, lower_bound_s
from envs.cluster.cluster import COPIES
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.granularity import with_granularity
from graphs.levels import b_level, t_level
from graphs.op_graph import build_graph
from tests.agent.placement_cases import found_by, make_cluster, optimum_s, random_problem


def problem_of(flops, tensors=(), n_devices=2, **rules):
    ops = [{"name": f"op{i}", "flops": value} for i, value in enumerate(flops)]
    return Problem(build_graph("g", "f", ops, tensors), make_cluster(n_devices, **rules))


def join(tensor_bytes):
    """Results of two ops, which a third one reads."""
    return [(0, tensor_bytes, [2]), (1, tensor_bytes, [2])]


OP_S = 1e-3 + 1e-6
WIDE = [(0, 1.0, [1, 2, 3, 4]), *((i, 1.0, [5]) for i in range(1, 5))]
SENT_S = 1e-6 + 1e6 / 1e10
CHAINS = [(0, 1e10, [1]), (1, 1e10, [2]), (3, 1e10, [4]), (4, 1e10, [5]), (2, 1e10, [6]), (5, 1e10, [6])]


@pytest.mark.parametrize(
    ("flops", "tensors", "rules", "bound_s"),
    [
        pytest.param([1e9, 2e9, 3e9], [(0, 1.0, [1]), (1, 1.0, [2])], {}, 6e-3 + 3e-6, id="a chain"),
        pytest.param([1e9] * 6, [], {}, 2 * OP_S, id="independent ops share the work"),
        pytest.param([1e9] * 6, [], {"op_gap_s": 1e-4}, 2 * OP_S + 1e-4, id="a gap but after the last op"),
        pytest.param([1e9] * 6, WIDE, {"n_devices": 2}, 4 * OP_S, id="work between a source and a sink"),
        pytest.param([1e9] * 3, [(0, 1e9, [1, 2])], {"n_devices": 2}, 3 * OP_S, id="a fork is a join"),
        pytest.param([1e9] * 3, join(1e6), {}, 2 * OP_S + SENT_S, id="a join pays a transfer"),
        pytest.param([1e9] * 3, join(1e9), {}, 3 * OP_S, id="or runs serially"),
        pytest.param([1e9] * 7, CHAINS, {"n_devices": 2}, 7 * OP_S, id="tensors too large to send"),
        pytest.param([1e9] * 6, [], {"issue_s": 5e-3}, 6 * 5e-3 + OP_S, id="the host issues one by one"),
        pytest.param(
            [1e9, 0.0, 1e9, 0.0], [(2, 1.0, [3])], {"issue_s": 5e-3}, 2 * 5e-3 + OP_S, id="no time, no issue"
        ),
        pytest.param([0.0, 0.0], [], {}, 0.0, id="free ops"),
    ],
)
def test_the_bound_of_a_small_graph(flops, tensors, rules, bound_s):
    assert lower_bound_s(problem_of(flops, tensors, **{"n_devices": 3} | rules)) == pytest.approx(bound_s)


def test_related_devices_share_work_by_speed():
    problem = problem_of([1e9] * 300, n_devices=2, slower=2.0)
    seconds = problem.op_seconds.sum(axis=0)
    assert lower_bound_s(problem) == pytest.approx(1 / (1 / seconds[0] + 1 / seconds[1]), rel=1e-2)


def test_a_colocation_group_is_serial():
    ops = [{"name": f"op{i}", "flops": 1e9, "colocate": 0} for i in range(4)]
    problem = Problem(build_graph("g", "f", ops, []), make_cluster(4))
    assert lower_bound_s(problem) == pytest.approx(4 * OP_S)


@pytest.mark.parametrize(("schedule", "n_before"), [("program", 2), ("fifo", 1)])
def test_in_program_order_an_op_waits_for_the_earlier_ones_of_its_unit(schedule, n_before):
    """Another unit reads the second of two ops that do not depend on each other."""
    ops = [{"name": name, "flops": 1e9, "colocate": unit} for name, unit in [("a", 0), ("b", 0), ("c", 1)]]
    problem = Problem(build_graph("g", "f", ops, [(1, 1.0, [2])]), make_cluster(2, schedule=schedule))
    head, _ = heads_and_tails(problem)
    assert head[2] == pytest.approx(n_before * OP_S)


@pytest.mark.parametrize("granularity", ["block", "layer"])
def test_the_bound_is_near_what_refine_finds_where_blocks_are_placed_whole(granularity):
    graph = with_granularity(load_family("vit")[0], granularity)
    problem = Problem(graph, get_cluster("4xv100"))
    found = found_by("refine", problem, 2000)
    assert 0.95 * found.step_time.total_s < lower_bound_s(problem) <= found.step_time.total_s


def test_dual_ascent_finds_that_each_device_has_its_own_ops():
    occupied = np.array([[1.0, 100.0]] * 10 + [[100.0, 1.0]] * 10)
    weights = device_weights(occupied)
    assert (occupied * weights).min(axis=1).sum() == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize("seed", range(100))
def test_no_placement_of_all_beats_the_bound_and_transfers_only_raise_it(seed):
    rng = np.random.default_rng(seed)
    n_devices = int(rng.integers(1, 4))
    problem = random_problem(seed, n_ops=int(rng.integers(4, 9)), n_devices=n_devices)
    if problem.cluster.schedule == "program":
        drawn = {"issue_s": [0.0, 1e-4, 1e-2], "op_gap_s": [0.0, 1e-4], "n_half_bytes": [0.0, 1e6]}
        rules = {name: float(rng.choice(values)) for name, values in drawn.items()}
        cluster = replace(problem.cluster, copies=str(rng.choice(list(COPIES))), **rules)
        problem = Problem(problem.graph, cluster)
    assert lower_bound_s(problem) <= optimum_s(problem) * (1 + 1e-9)
    head, tail = heads_and_tails(problem)
    fastest, instant = problem.op_seconds.min(axis=1), np.zeros(problem.graph.n_tensors)
    assert (head >= t_level(problem.graph, fastest, instant) * (1 - 1e-12)).all()
    assert (tail >= (b_level(problem.graph, fastest, instant) - fastest) * (1 - 1e-12) - 1e-15).all()


@pytest.mark.parametrize("seed", range(40))
def test_no_placement_of_few_large_units_beats_the_bound(seed):
    rng = np.random.default_rng(seed)
    n_devices = int(rng.integers(2, 4))
    problem = random_problem(seed, n_ops=int(rng.integers(10, 25)), n_devices=n_devices)
    colocate = rng.integers(int(rng.integers(2, 6)), size=problem.graph.n_ops)
    problem = Problem(replace(problem.graph, colocate=colocate), problem.cluster)
    assert lower_bound_s(problem) <= optimum_s(problem) * (1 + 1e-9)


@pytest.mark.parametrize("family", ["cifar10", "ptb", "resnet"])
def test_transfers_raise_the_bound_of_captured_graphs(family):
    problem = Problem(load_family(family)[1], get_cluster("4xv100"))
    quick = replace(problem.cluster, bytes_per_s=np.full((4, 4), 1e15), latency_s=np.zeros((4, 4)))
    bound_s = lower_bound_s(problem)
    assert bound_s > 1.02 * lower_bound_s(Problem(problem.graph, quick))
    found = found_by("refine", problem, 2000)
    assert bound_s <= found.step_time.total_s
