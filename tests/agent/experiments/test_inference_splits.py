"""Splits of a model's layers: the best one is that of an enumeration, the others are in proportion."""

from __future__ import annotations

from itertools import combinations_with_replacement, permutations
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.experiments import inference_splits as splits
from agent.experiments.inference_cases import HOST, MACHINES, MODELS, machine
from agent.experiments.rows import write_rows
from envs.cluster.cluster import Device
from envs.cluster.links import Link
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import OpGraph, build_graph
from graphs.system.array_types import IntArray

LINK = Link(1e9, 1e-4, 0.0)


def layers_of(megabytes: list[int]) -> OpGraph:
    """A chain of layers of one product, of weights of so many MB."""
    ops: list[dict[str, object]] = []
    for layer, size in enumerate(megabytes):
        ops.append(
            {"name": f"w{layer}", "type": "parameter", "resident_bytes": size * 1e6, "colocate": layer}
        )
        ops.append({"name": f"y{layer}", "type": "aten.mm", "bytes_moved": size * 1e6, "colocate": layer})
    weights = [(2 * layer, size * 1e6, [2 * layer + 1]) for layer, size in enumerate(megabytes)]
    passed = [(2 * layer + 1, 1e3, [2 * layer + 3]) for layer in range(len(megabytes) - 1)]
    return build_graph("layers", "", ops, weights + passed)


def device(at: int, megabytes: float, gb_per_s: float) -> Device:
    return Device(f"gpu{at}", f"kind{at}", (megabytes + 0.5) * 1e6, 1e12, gb_per_s * 1e9, 0.0)


def step_s(problem: Problem, device_of: IntArray) -> float:
    step = simulate_problem(problem, device_of)
    return step.total_s if step.fits else inf


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(3, 40), st.sampled_from([0.5, 1, 4])), min_size=2, max_size=3),
)
def test_the_best_split_is_that_of_an_enumeration(
    layers: list[int], devices: list[tuple[int, float]]
) -> None:
    problem = Problem(
        layers_of(layers), machine(LINK, *(device(at, *each) for at, each in enumerate(devices)))
    )
    n_layers, n_devices = len(layers), len(devices)
    all_ranges = (
        np.searchsorted(cuts, np.arange(n_layers), side="right")
        for cuts in combinations_with_replacement(range(n_layers + 1), n_devices - 1)
    )
    everything = [
        np.array(order)[ranges][problem.graph.unit_of]
        for ranges in all_ranges
        for order in permutations(range(n_devices))
    ]
    best_s = min(step_s(problem, device_of) for device_of in everything)
    assert step_s(problem, splits.best_by_layer(problem)) == pytest.approx(best_s)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=4), st.integers(1, 30))
def test_layers_are_in_proportion(weights: list[float], n_layers: int) -> None:
    devices = (device(at, 1e6, 1.0) for at in range(len(weights)))
    problem = Problem(layers_of([1] * n_layers), machine(LINK, *devices))
    counts = np.bincount(splits.in_proportion(problem, np.array(weights))[::2], minlength=len(weights))
    assert np.abs(counts - n_layers * np.array(weights) / sum(weights)).max() <= 1


def test_what_overflows_goes_where_memory_is_free() -> None:
    problem = Problem(layers_of([10] * 6), machine(LINK, device(0, 25, 8.0), device(1, 100, 1.0)))
    assert splits.by_speed(problem)[::2].tolist() == [0, 0, 1, 1, 1, 1]
    assert splits.by_bytes(problem)[::2].tolist() == [0, 0, 1, 1, 1, 1]


def test_a_host_gets_what_gpus_have_no_room_for() -> None:
    problem = Problem(layers_of([10] * 6), machine(LINK, HOST, device(0, 45, 8.0)))
    assert splits.by_bytes(problem)[::2].tolist() == [0, 0, 1, 1, 1, 1]


def test_models_have_the_sizes_that_they_are_published_with() -> None:
    billions = [sum(each.numel() for each in make()[0].parameters()) / 1e9 for make in MODELS]
    assert billions == pytest.approx([8.03, 32.76, 70.55, 46.70, 30.53], abs=0.01)


def test_tables_show_rates_losses_and_what_does_not_fit(tmp_path: Path) -> None:
    seconds = {splits.BYTES: 0.2, splits.SPEED: 0.125, splits.BEST: 0.1, splits.SEARCH: 0.05}
    rows = [
        splits.SplitRow("m", "bf16", name, split, token_s, 3.0, name != "8 x 3090", 0.0)
        for name in MACHINES
        for split, token_s in seconds.items()
    ]
    write_rows(tmp_path / "rows.csv", rows)
    rates, losses = splits.split_tables(tmp_path / "rows.csv")
    assert rates.splitlines()[2] == f"| m, bf16 | {'5 / 8 / 10 / 20 | ' * 4}none fits |"
    assert losses.splitlines()[2].split(" | ")[1:] == [
        *("1", "1", "", "50.0 (50.0 to 50.0)", "20.0 (20.0 to 20.0)"),
        *("50.0 (50.0 to 50.0)", "", "3.0 (3.0 to 3.0) |"),
    ]
