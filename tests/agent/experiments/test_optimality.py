"""Placers against known optima: rows and tables."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from agent.experiments.optimality.answer import PLACERS
from agent.experiments.optimality.problems import (
    LEAST_PLACEMENTS,
    SETTINGS,
    Setting,
    finest_that_is_small,
    n_different,
)
from agent.experiments.optimality.rows import (
    LEVEL,
    OptimalityRow,
    closed_table,
    is_hard,
    is_trivial,
    rows_of,
    table,
)
from agent.placers.exact.enumeration import MAX_PLACEMENTS
from envs.cluster.presets import get_cluster
from graphs.dataset import load_family
from graphs.granularity import with_granularity
from tests.agent.evaluation_cases import make_trial
from tests.agent.placement_cases import training_graph

RESULTS = Path("agent") / "experiments" / "results"
SETTING = Setting("4xv100:2", 16)


def make_row(**changes: object) -> OptimalityRow:
    row = OptimalityRow(
        graph="a-in-16",
        family="f",
        ops=16,
        cluster="4xv100:2",
        granularity="op",
        n_units=16,
        placements=32768,
        optimum_s=1.0,
        proof_cpu_s=2.0,
        single=1.5,
        bound=0.9,
        budget=300,
        placer="heft",
        found=1.0,
        evaluations=5,
        cpu_s=0.1,
    )
    return replace(row, **changes)


def test_settings_can_be_tried_but_for_one_of_each_cluster() -> None:
    assert sum(not setting.can_be_tried for setting in SETTINGS) == 2
    assert len({each.folder for each in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(("n_units", "n_devices"), [(1, 3), (6, 2), (6, 3), (5, 4)])
def test_placements_that_differ_in_names_alone_count_once(n_units: int, n_devices: int) -> None:
    different = set()
    for placement in itertools.product(range(n_devices), repeat=n_units):
        number: dict[int, int] = {}
        different.add(tuple(number.setdefault(device, len(number)) for device in placement))
    assert n_different(n_units, n_devices) == len(different)


def test_a_whole_graph_has_the_finest_granularity_that_is_small() -> None:
    whole = load_family("nmt")[0]
    found = {n: finest_that_is_small(whole, get_cluster(f"4xv100:{n}")) for n in (2, 3)}
    for n_devices, chosen in found.items():
        levels = ["module", "block", "layer"]
        counts = [n_devices ** len(with_granularity(whole, level).units) for level in levels]
        small = [level for level, count in zip(levels, counts, strict=True) if count <= MAX_PLACEMENTS]
        if chosen is None:
            least = [n_different(len(with_granularity(whole, level).units), n_devices) for level in small[:1]]
            assert all(count < LEAST_PLACEMENTS for count in least)
        else:
            assert chosen[0] == small[0]
            assert len(chosen[1].units) == len(with_granularity(whole, small[0]).units)
    assert any(found.values())


def test_graphs_that_were_not_closed_are_left_out() -> None:
    proofs = [
        make_trial(graph="closed", placer="exact", step_time_s=2.0, lower_bound_s=2.0, cpu_s=7.0),
        make_trial(graph="open", placer="exact", step_time_s=2.0, lower_bound_s=1.9),
        make_trial(graph="nothing fits", placer="exact", step_time_s=2.0, lower_bound_s=2.0, feasible=False),
    ]
    trials = [
        make_trial(graph=graph, placer="heft", step_time_s=2.5, lower_bound_s=1.5, single_s=3.0)
        for graph in ("closed", "open", "nothing fits")
    ]
    graph = training_graph(2, 2)
    (row,) = rows_of(SETTING, dict.fromkeys(("closed", "open", "nothing fits"), graph), proofs, trials, 300)
    assert (row.graph, row.placer, row.budget) == ("closed", "heft", 300)
    assert (row.found, row.bound, row.single, row.proof_cpu_s) == (1.25, 0.75, 1.5, 7.0)
    assert (row.ops, row.n_units) == (int(graph.is_compute.sum()), len(graph.units))
    assert row.placements == 2 ** (len(graph.units) - 1)


def test_a_table_counts_optima_where_one_device_is_not_enough() -> None:
    row = make_row()
    rows = [
        row,
        replace(row, graph="b-in-16", found=1.21),
        replace(row, graph="c-in-16", single=1.0, found=2.0),
    ]
    assert [is_trivial(each) for each in rows] == [False, False, True]
    assert "| 5 | heft | 2 | 50% | 1.1000 | 1.210 | 0.100 |" in table(rows)
    closed = closed_table(rows, {SETTING: 4})
    assert "| 4xv100:2 | group, 16 | 16 | 16 | 4 | 3 | 1 | 0.900 | 0.900 |" in closed


def test_one_device_that_is_faster_than_the_optimum_does_not_fit_and_is_no_optimum() -> None:
    assert not is_trivial(make_row(single=0.8))


def test_budgets_that_try_many_of_the_placements_are_left_out() -> None:
    few = make_row(placer="refine", placements=2795, evaluations=300)
    assert is_hard(replace(few, budget=279))
    assert not is_hard(few)
    many = replace(few, placements=32768)
    rows = [
        replace(each, budget=budget, evaluations=budget) for each in (few, many) for budget in (300, 10_000)
    ]
    assert [line.split(" | ")[:3] for line in table(rows).splitlines()[2:]] == [["| 300", "refine", "1"]]


def test_no_placer_beats_an_optimum_and_no_bound_is_above_one() -> None:
    """Of the committed rows."""
    with (RESULTS / "optimality.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert min(float(row["found"]) for row in rows) >= 1 - LEVEL
    assert max(float(row["bound"]) for row in rows) <= 1 + LEVEL


def test_the_placers_compared_have_every_search() -> None:
    assert {"annealing", "refine", "policy-beam", "policy-refine"} < set(PLACERS)
