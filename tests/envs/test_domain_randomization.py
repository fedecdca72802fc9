import numpy as np
import pytest

from envs.cluster.presets import get_cluster
from envs.domain_randomization import SCARCE_MEMORY, randomize_domain, resize
from graphs.dataset import load_family
from graphs.limits import MAX_SECONDS, MIN_SECONDS
from graphs.op_graph import build_graph
from tests.envs.random_problems import random_graph


@pytest.mark.parametrize("name", ["2xk80", "8xa100", "2x4xa100", "gpu+cpu"])
def test_variations_keep_the_rules_of_the_cluster_and_leave_room(name):
    graph, given = random_graph(np.random.default_rng(0), 30), get_cluster(name)
    for seed in range(50):
        problem = randomize_domain(graph, given, np.random.default_rng(seed))
        cluster = problem.cluster
        assert problem.is_feasible
        assert min(2, given.n_devices) <= cluster.n_devices <= given.n_devices
        assert {device.name for device in cluster.devices} <= {device.name for device in given.devices}
        assert (cluster.schedule, cluster.sharing) == (given.schedule, given.sharing)


def test_a_slower_link_stays_slower():
    given = get_cluster("2x4xa100")
    graph = random_graph(np.random.default_rng(0), 30)
    cluster = randomize_domain(graph, given, np.random.default_rng(3)).cluster
    kept = [
        given.devices.index(next(d for d in given.devices if d.name == device.name))
        for device in cluster.devices
    ]
    off_diagonal = ~np.eye(len(kept), dtype=bool)
    factors = (cluster.bytes_per_s / given.bytes_per_s[np.ix_(kept, kept)])[off_diagonal]
    assert factors == pytest.approx(factors[0])


def test_what_lies_at_a_bound_stays_within_it():
    ops = [
        {"name": "mm", "flops": 0.9 * MAX_SECONDS * 156e12},
        {"name": "add", "seconds": {"a100": MIN_SECONDS}},
    ]
    graph, given = build_graph("g", "", ops, []), get_cluster("8xa100")
    kept = [randomize_domain(graph, given, np.random.default_rng(seed)).graph is graph for seed in range(30)]
    assert any(kept)
    assert not all(kept)


def test_scarce_memory_is_scarce():
    graph, given = random_graph(np.random.default_rng(0), 30), get_cluster("4xv100")
    ratios = []
    for seed in range(100):
        problem = randomize_domain(graph, given, np.random.default_rng(seed))
        if problem.cluster.memory_bytes[0] < given.memory_bytes[0]:
            ratios.append(problem.cluster.memory_bytes.sum() / problem.footprint_bytes.sum())
    assert 10 <= len(ratios) <= 60
    assert all(SCARCE_MEMORY[0] <= ratio * (1 + 1e-9) and ratio <= SCARCE_MEMORY[1] for ratio in ratios)


def test_a_resized_graph_has_the_same_ops_and_each_module_its_own_size():
    given = load_family("gpt")[0]
    sized = resize(given, np.random.default_rng(0))
    assert (sized.op_names, sized.modules) == (given.op_names, given.modules)
    assert (sized.edges == given.edges).all()
    modules = np.array(given.modules)
    updates = np.array([phase == "optimizer" for phase in given.phases])
    for module in sorted(set(given.modules)):
        own = (modules == module) & ~updates & (given.flops > 0)
        factors = sized.flops[own] / given.flops[own]
        assert factors == pytest.approx(factors[:1].repeat(len(factors)))


def test_the_batch_size_does_not_change_weights_and_gradients():
    given = load_family("gpt")[0]
    sized = resize(given, np.random.default_rng(1))
    parameter = np.array([kind == "parameter" for kind in given.op_types])
    weights, kept = parameter[given.tensor_producer], given.resident_bytes > 0
    by_module = dict(
        zip(
            np.array(given.modules)[kept],
            (sized.resident_bytes / np.maximum(given.resident_bytes, 1))[kept],
            strict=True,
        )
    )
    for tensor in np.flatnonzero(weights | (given.tensor_owner >= 0)):
        grown = sized.tensor_bytes[tensor] / given.tensor_bytes[tensor]
        assert grown == pytest.approx(by_module.get(given.modules[given.tensor_producer[tensor]], grown))
