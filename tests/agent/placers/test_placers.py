"""The contract of every placer, and known answers of each."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from agent.bounds.lower_bound import lower_bound_s
from agent.placers.base import PLACERS, Budget, PlacerError, SearchState, names_of
from agent.placers.heuristics.contiguous import cut
from agent.placers.heuristics.fill import fill
from agent.placers.units import units_by_layer
from envs.objective import OVER_BYTES, simulate
from envs.placements.placement import check_placement
from envs.problem import Problem
from graphs.op_graph import build_graph
from tests.agent.placement_cases import GB, found_by, make_cluster, random_problem, training_graph

ALL, EVERY = sorted(names_of("step", learned=False)), sorted(names_of("step"))
CASES = [Problem(training_graph(3, 2), make_cluster(2)), *(random_problem(seed) for seed in range(4))]


@pytest.mark.parametrize("problem", CASES, ids=lambda problem: problem.graph.name)
@pytest.mark.parametrize("name", EVERY)
def test_placement_is_valid_and_timed_by_the_simulator(name, problem):
    found = found_by(name, problem)
    check_placement(problem.graph, problem.cluster, found.placement)
    assert found.step_time.total_s == simulate(problem.graph, problem.cluster, found.placement).total_s
    assert found.step_time.total_s >= lower_bound_s(problem) * (1 - 1e-9)
    assert found.wall_s > 0


@pytest.mark.parametrize("evaluations", [1, 2, 7, 65, 200])
@pytest.mark.parametrize("name", EVERY)
def test_budget_of_evaluations_is_kept(name, evaluations):
    assert 1 <= found_by(name, CASES[0], evaluations).evaluations <= evaluations


@pytest.mark.parametrize("name", ["random", "annealing", "local-search"])
def test_search_spends_its_whole_budget(name):
    assert found_by(name, CASES[0], 1000).evaluations == 1000


@pytest.mark.parametrize("name", ALL)
def test_budget_of_seconds_ends_a_run_by_its_own_clock(name):
    """The clock goes on by a second at each reading, so another one would end the run much later."""
    clock = itertools.count()
    budget = Budget(None, 50.0, lambda: float(next(clock)))
    found = PLACERS[name].place(CASES[0], budget, np.random.default_rng(0))
    assert found.cpu_s < 1.0
    assert budget.shared(2).clock is budget.clock


@pytest.mark.parametrize("name", EVERY)
def test_a_placement_depends_on_the_seed_of_placers_that_draw_alone(name):
    seeds = (3, 3) if PLACERS[name].uses_rng else (3, 4)
    first, second = (found_by(name, CASES[1], seed=seed).placement.device_of for seed in seeds)
    assert (first == second).all()


@pytest.mark.parametrize("name", [name for name in ALL if name != "single"])
def test_a_model_too_big_for_one_device_is_spread(name):
    tight = Problem(training_graph(4, 3), make_cluster(3, memory_bytes=6 * GB))
    assert found_by(name, tight).feasible


@pytest.mark.parametrize("name", EVERY)
def test_a_model_that_fits_nowhere_is_infeasible(name):
    found = found_by(name, Problem(training_graph(4, 3), make_cluster(2, memory_bytes=3 * GB)))
    assert not found.feasible


@pytest.mark.parametrize("name", EVERY)
def test_one_device_leaves_no_choice(name):
    problem = random_problem(5, n_devices=1)
    assert (found_by(name, problem).placement.device_of == 0).all()


@pytest.mark.parametrize("problem", CASES, ids=lambda problem: problem.graph.name)
@pytest.mark.parametrize("name", ["contiguous", "annealing", "local-search"])
def test_searches_that_include_the_fastest_device_are_never_worse(name, problem):
    assert found_by(name, problem).step_time.total_s <= found_by("single", problem).step_time.total_s


def test_best_prefers_feasible_to_fast_and_little_overflow_to_much():
    problem = Problem(training_graph(4, 3), make_cluster(3, memory_bytes=6 * GB))
    search = SearchState(problem, Budget(10))
    one = np.zeros((1, problem.graph.n_ops), dtype=np.int64)
    spread = (np.arange(len(problem.graph.units)) % 3)[None]
    assert search.score(one)[0, OVER_BYTES] > 0
    assert not search.is_feasible
    assert search.score_units(spread)[0, OVER_BYTES] == 0
    assert search.is_feasible
    search.score(one)
    assert (search.best == spread[0][problem.graph.unit_of]).all()


def test_fill_goes_on_when_full_and_the_last_device_takes_the_rest():
    held = np.array([2.0, 2.0, 1.0, 3.0, 9.0])
    assert fill(np.arange(5), held, np.array([4.0, 4.0, 4.0])).tolist() == [0, 0, 1, 1, 2]


def test_cut_is_in_proportion():
    order, weight = np.array([3, 2, 1, 0]), np.ones(4)
    assert cut(order, weight, np.array([5, 7]), np.array([3.0, 1.0])).tolist() == [7, 5, 5, 5]


def test_layer_order_keeps_backward_beside_forward():
    graph = training_graph(3, 1)
    names = [graph.op_names[int(graph.units.row(int(unit))[-1])] for unit in units_by_layer(graph)]
    backward = [name for name in names if name.endswith("backward")]
    assert backward == [f"b0.l{layer}.backward" for layer in range(3)]
    assert names.index("b0.l0.backward") < names.index("b0.l2.update")


def test_earliest_finish_pays_for_transfers():
    ops = [{"name": f"op{i}", "flops": 1e9} for i in range(3)]
    cheap, dear = (build_graph("g", "f", ops, [(0, size, [1, 2])]) for size in (1e6, 1e9))
    spread, together = (found_by("heft", Problem(graph, make_cluster(2))) for graph in (cheap, dear))
    assert len(set(spread.placement.device_of.tolist())) == 2
    assert len(set(together.placement.device_of.tolist())) == 1


@pytest.mark.parametrize(
    ("limits", "clause"),
    [((0, None), "at least 1"), ((None, None), "give evaluations, seconds or both"), ((1, 0.0), "above 0")],
)
def test_budgets_that_allow_nothing_are_refused(limits, clause):
    with pytest.raises(PlacerError, match=clause):
        Budget(*limits)


def test_placers_stand_in_one_order_whichever_module_is_imported_first():
    code = "import agent.placers.{}\nfrom agent.placers.base import PLACERS\nprint(*PLACERS)"
    runs = [
        subprocess.run([sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=True)
        for name in ("base", "heuristics.metis", "search.annealing", "search.refine")
    ]
    assert len({done.stdout.splitlines()[-1] for done in runs}) == 1
