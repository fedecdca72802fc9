"""The bound of kinds of devices and their memory: known answers, and never above a feasible placement."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from agent.bounds import assignment_bound
from agent.bounds.assignment_bound import assignment_bound_s
from agent.bounds.kind_costs import kind_costs
from agent.bounds.lower_bound import heads_and_tails, lower_bound_s
from agent.bounds.path_kernels import before_and_after, longest_path
from agent.bounds.windows import heaviest_window
from agent.placers.base import PLACERS, Budget
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_many
from graphs.dataset import load_family
from graphs.granularity import with_granularity
from graphs.levels import b_level
from graphs.op_graph import build_graph
from tests.agent.placement_cases import GB, make_cluster, random_problem

FAST_S, SLOW_S = 1e-3 + 1e-6, 10e-3 + 1e-6
"""Seconds of an op of `problem_of` on either of its devices."""
TOLERANCE = 2e-3
"""The program is solved until its bound is this near to the optimum."""


def problem_of(n_ops, tensors=(), *, keeping=(), fast_bytes=16 * GB, **rules):
    """Ops of 1 ms on a fast device with little memory and of 10 ms on a slow one; some keep 1 GB."""
    ops = [
        {"name": f"op{op}", "flops": 1e9, "resident_bytes": GB if op in keeping else 0.0}
        for op in range(n_ops)
    ]
    problem = Problem(build_graph("g", "f", ops, tensors), make_cluster(2, slower=10.0, **rules))
    return problem.with_memory(np.array([fast_bytes, 1000 * GB]))


def bound_s(problem):
    return assignment_bound_s(problem, *heads_and_tails(problem))


def test_what_the_fast_device_cannot_hold_runs_on_the_slow_one():
    problem = problem_of(10, keeping=range(10), fast_bytes=6 * GB)
    assert bound_s(problem) == pytest.approx(4 * SLOW_S, rel=TOLERANCE)
    assert lower_bound_s(problem) == bound_s(problem) > 3 * lower_bound_s(problem_of(10, keeping=range(10)))


def test_ops_are_cut_in_pieces():
    """Half of an op fits on the fast device: the bound is that of 3.5 ops on the slow one, not of 4."""
    problem = problem_of(10, keeping=range(10), fast_bytes=6.5 * GB)
    assert bound_s(problem) == pytest.approx(3.5 * SLOW_S, rel=TOLERANCE)


def test_gaps_follow_every_op_but_the_last():
    problem = problem_of(10, keeping=range(10), fast_bytes=6 * GB, op_gap_s=1e-3)
    assert bound_s(problem) == pytest.approx(4 * SLOW_S + 3e-3, rel=TOLERANCE)


def test_a_path_that_the_fast_device_cannot_hold_is_longer():
    chain = [(op, 1.0, [op + 1]) for op in range(9)]
    problem = problem_of(10, chain, keeping=range(10), fast_bytes=6 * GB)
    assert bound_s(problem) == pytest.approx(6 * FAST_S + 4 * SLOW_S, rel=TOLERANCE)


def test_nothing_after_a_loss_begins_before_the_slow_device_is_done():
    """Ten forward ops keep weights, ten backward ops none: the fast device waits for the slow one."""
    tensors = [*((op, 1.0, [10]) for op in range(10)), (10, 1.0, list(range(11, 21)))]
    problem = problem_of(21, tensors, keeping=range(10), fast_bytes=6 * GB)
    backward_s = 10 / (1 / FAST_S + 1 / SLOW_S)
    assert bound_s(problem) == pytest.approx(4 * SLOW_S + FAST_S + backward_s, rel=TOLERANCE)


def test_a_tensor_that_is_kept_over_an_op_takes_memory():
    """A tensor of 6 GB is read again after the loss: 2/3 of it can stay on the fast device, with 4 GB.

    The reader of the rest is on the slow one; links have no limit in the bound.
    """
    problem = problem_of(3, [(0, 1.0, [1]), (0, 6 * GB, [2]), (1, 1.0, [2])], fast_bytes=4 * GB)
    assert bound_s(problem) == pytest.approx(2 * FAST_S + (2 * FAST_S + SLOW_S) / 3, rel=TOLERANCE)
    enough = problem.with_memory(np.array([6.1, 1000]) * GB)
    assert bound_s(enough) == pytest.approx(3 * FAST_S, rel=TOLERANCE)


def two_of_each(cluster):
    """A cluster with two devices of each kind; all links are those of the first pair."""
    devices = tuple(replace(device, name=f"{device.name}{i}") for device in cluster.devices for i in range(2))
    n = len(devices)
    rates, latencies = np.full((n, n), 1e10), np.full((n, n), 1e-6)
    return replace(cluster, devices=devices, bytes_per_s=rates, latency_s=latencies)


def test_devices_of_a_kind_hold_and_work_together():
    ops = [{"name": f"op{op}", "flops": 1e9, "resident_bytes": GB} for op in range(20)]
    problem = Problem(build_graph("g", "f", ops, []), two_of_each(make_cluster(2, slower=10.0)))
    tight = problem.with_memory(np.array([6, 6, 1000, 1000]) * GB)
    assert kind_costs(tight, *heads_and_tails(tight)).n_devices.tolist() == [2, 2]
    assert bound_s(tight) == pytest.approx(4 * SLOW_S, rel=TOLERANCE)


def test_equal_devices_gain_nothing():
    problem = Problem(problem_of(10, keeping=range(10)).graph, make_cluster(2, memory_bytes=5 * GB))
    assert bound_s(problem) == 0.0


def test_where_no_placement_is_feasible_memory_does_not_count():
    endless = problem_of(10, keeping=range(10))
    whole = endless.with_memory(np.array([5.0, 4.0]) * GB)
    one_op = endless.with_memory(np.array([0.9, 0.9]) * GB)
    assert bound_s(whole) == bound_s(one_op) == 0.0
    assert lower_bound_s(whole) == lower_bound_s(one_op) > 0.0


def test_an_op_runs_where_it_fits():
    problem = problem_of(2, keeping=[0], fast_bytes=0.5 * GB)
    assert bound_s(problem) == pytest.approx(SLOW_S, rel=TOLERANCE)


def test_more_kinds_than_are_counted_cost_nothing():
    problem = random_problem(1, n_devices=assignment_bound.MAX_KINDS + 1)
    memory = np.linspace(1, 2, problem.n_devices) * GB
    assert bound_s(problem.with_memory(memory)) == 0.0


def hourglass(seed):
    """A random training step of few ops: backward ops read what forward ops made."""
    rng = np.random.default_rng(seed)
    n_layers = int(rng.integers(1, 4))
    ops, readers = [], {}

    def op(name, *inputs, **fields):
        ops.append({"name": name, "flops": float(rng.choice([1e6, 1e9, 5e9])), **fields})
        for producer in inputs:
            readers.setdefault(producer, set()).add(len(ops) - 1)
        return len(ops) - 1

    below = [op("input", type="input", flops=0.0)]
    for layer in range(n_layers):
        group = layer if rng.random() < 0.5 else None
        resident = float(rng.integers(30)) * 1e6
        below.append(op(f"forward{layer}", below[-1], resident_bytes=resident, colocate=group))
    above = op("loss", below[-1])
    for layer in reversed(range(n_layers)):
        kept = below[layer : layer + 2] if rng.random() < 0.6 else below[layer + 1 : layer + 2]
        group = layer if rng.random() < 0.4 else None
        above = op(f"backward{layer}", above, *kept, phase="backward", colocate=group)
    tensors = [(op, float(rng.integers(100)) * 1e6, sorted(users)) for op, users in sorted(readers.items())]
    return Problem(build_graph(f"hourglass{seed}", "random", ops, tensors), random_problem(seed).cluster)


def with_memory_of_a_placement(problem, rng):
    """The problem with memories that are the peaks of one placement, some raised; the steps that fit them."""
    units = np.array(list(itertools.product(range(problem.n_devices), repeat=len(problem.graph.units))))
    total_s, peak = simulate_many(problem, np.ascontiguousarray(units[:, problem.graph.unit_of]))
    raised = rng.choice([1.0, 1.2, 10.0], size=problem.n_devices)
    tight = problem.with_memory(np.maximum(peak[rng.integers(len(peak))] * raised, 1.0))
    return tight, total_s[(peak <= tight.cluster.memory_bytes).all(axis=1)]


def tight_problem(seed):
    """A random problem of unequal memories that some placement just meets, and the steps of all that do."""
    rng = np.random.default_rng(seed)
    n_kinds = int(rng.integers(2, 4))
    problem = random_problem(seed, n_ops=int(rng.integers(4, 9)), n_devices=n_kinds)
    if n_kinds == 2 and rng.random() < 0.5:
        problem = Problem(problem.graph, two_of_each(problem.cluster))
    return with_memory_of_a_placement(problem, rng)


@pytest.mark.parametrize("seed", range(300))
def test_no_feasible_placement_of_all_beats_the_bound(seed):
    problem, steps_s = tight_problem(seed)
    assert len(steps_s)
    assert lower_bound_s(problem) <= steps_s.min() * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_no_feasible_placement_of_extreme_costs_beats_the_bound(seed):
    """Seconds of 24 orders of magnitude, or all of them far below a device's rest; any number of bytes."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, n_ops=6, n_devices=2)
    graph, low, high = problem.graph, *[(-15, 8), (-15, -12), (6, 8), (-9, 8)][seed % 4]
    seconds = {
        device.kind: np.where(graph.is_source, 0.0, 10.0 ** rng.uniform(low, high, graph.n_ops))
        for device in problem.cluster.devices
    }
    resident = 10.0 ** rng.uniform(*[(0, 17), (0, 3), (15, 17)][seed % 3], graph.n_ops)
    extreme = Problem(replace(graph, seconds=seconds, resident_bytes=resident), problem.cluster)
    tight, steps_s = with_memory_of_a_placement(extreme, rng)
    assert 0 <= lower_bound_s(tight) <= steps_s.min() * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(150))
def test_no_feasible_placement_of_a_training_step_beats_the_bound(seed):
    problem, steps_s = with_memory_of_a_placement(hourglass(seed), np.random.default_rng(seed))
    assert lower_bound_s(problem) <= steps_s.min() * (1 + 1e-9)


def test_memory_raises_the_bound_of_many_random_problems():
    gains = []
    for seed in range(60):
        problem, _ = tight_problem(seed)
        endless = problem.with_memory(np.full(problem.n_devices, 1e15))
        if endless.op_seconds.any():
            gains.append(lower_bound_s(problem) / lower_bound_s(endless))
    assert min(gains) >= 1 - TOLERANCE
    assert sum(gain > 1.01 for gain in gains) >= 10


@pytest.mark.parametrize("granularity", ["op", "module"])
def test_memory_raises_the_bound_of_a_captured_graph(granularity):
    graph = with_granularity(load_family("vit")[1], granularity)
    problem = Problem(graph, get_cluster("gpu+cpu"))
    tight = problem.with_memory(np.array([graph.resident_bytes.sum() * 0.4, 1e12]))
    assert lower_bound_s(tight) > 1.1 * lower_bound_s(problem)
    found = PLACERS["refine"].place(tight, Budget(2000), np.random.default_rng(0))
    assert found.feasible
    assert lower_bound_s(tight) <= found.step_time.total_s


@pytest.mark.parametrize("seed", range(20))
def test_paths_and_relatives_equal_those_of_networkx(seed):
    graph = random_problem(seed).graph
    seconds = np.random.default_rng(seed).exponential(size=graph.n_ops)
    path = longest_path(graph.edges, seconds)
    assert seconds[path].sum() == pytest.approx(b_level(graph, seconds, np.zeros(graph.n_tensors)).max())
    view = nx.DiGraph(graph.edges.tolist())
    view.add_nodes_from(range(graph.n_ops))
    assert nx.is_path(view, path.tolist())
    before, after = before_and_after(graph.edges, path, graph.n_ops)
    for op, ancestors, descendants in zip(path.tolist(), before, after, strict=True):
        assert set(np.flatnonzero(ancestors).tolist()) == nx.ancestors(view, op)
        assert set(np.flatnonzero(descendants).tolist()) == nx.descendants(view, op)


@pytest.mark.parametrize("seed", range(20))
def test_the_heaviest_window_is_that_of_all(seed):
    rng = np.random.default_rng(seed)
    work, head, tail = rng.integers(0, 5, size=(3, 12)).astype(np.float64)
    found = heaviest_window(work, head, tail)
    every = [
        (since + work[(head >= since) & (tail >= after)].sum() + after)
        for since, after in itertools.product(head, tail)
        if ((head >= since) & (tail == after)).any()
    ]
    inside = (head >= found.since_s) & (tail >= found.after_s)
    assert found.least_s == pytest.approx(max(every))
    assert found.since_s + work[inside].sum() + found.after_s == pytest.approx(found.least_s)
