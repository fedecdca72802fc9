"""Evaluation: which trials, what they record, resuming, and the summary's numbers."""

import csv
import math

import numpy as np
import pytest

from agent.evaluation.answers import Answers, placement_path
from agent.evaluation.comparison.ratios import geometric_mean
from agent.evaluation.comparison.summary import summarise
from agent.evaluation.report.page import write_report
from agent.evaluation.results import COLUMNS, best_times, write_results
from agent.evaluation.run import evaluate
from envs.objective import simulate
from envs.placements.files import read_placement
from envs.placements.placement import Placement
from envs.problem import InfeasibleError, Problem
from envs.simulator.data_parallel import simulate_data_parallel
from graphs.system.csv_files import write_csv
from tests.agent.evaluation_cases import make_trial, quiet, rows_of, small_spec
from tests.agent.placement_cases import GB, make_cluster


def test_placers_that_draw_run_for_every_seed_and_learned_ones_in_every_order():
    spec = small_spec(placers=("single", "random", "policy", "policy-sample"), orders=("topo", "random"))
    runs = [(task.placer, task.order, task.seed) for task in spec.tasks() if task.graph == 0]
    assert runs == [
        ("single", "", 0),
        ("random", "", 0),
        ("random", "", 1),
        ("policy", "topo", 0),
        ("policy", "random", 0),
        ("policy", "random", 1),
        *(("policy-sample", order, seed) for order in ("topo", "random") for seed in (0, 1)),
    ]


def test_results_have_the_contract_columns_and_true_values(tmp_path):
    spec = small_spec()
    trials = evaluate(spec, tmp_path, report=quiet).trials
    rows = rows_of(tmp_path)
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(trials) == len(spec.tasks())
    best = min(float(row["step_time_s"]) for row in rows if row["graph"] == "a")
    for row, trial in zip(rows, trials, strict=True):
        graph = spec.graphs["ab".index(row["graph"])]
        placement = read_placement(placement_path(tmp_path, trial), graph, spec.clusters[0])
        assert simulate(graph, spec.clusters[0], placement).total_s <= float(row["step_time_s"])
        assert float(row["ratio_to_single"]) == pytest.approx(trial.step_time_s / trial.single_s)
        if row["graph"] == "a":
            assert float(row["ratio_to_best"]) == pytest.approx(trial.step_time_s / best)
        assert float(row["lower_bound_s"]) <= float(row["step_time_s"])


def test_a_trial_does_not_depend_on_what_else_is_evaluated(tmp_path):
    both = evaluate(small_spec(), tmp_path / "x", report=quiet).trials
    alone = evaluate(small_spec(graphs=(small_spec().graphs[1],)), tmp_path / "y", report=quiet).trials
    assert [trial.step_time_s for trial in both[3:]] == [trial.step_time_s for trial in alone]


def test_answers_are_the_same_in_memory_and_in_files(tmp_path, monkeypatch):
    spec = small_spec()
    found = evaluate(spec, tmp_path, report=quiet)
    in_memory = list(found.answers.best(found.trials))
    assert len(in_memory) == 4
    monkeypatch.setattr("agent.evaluation.answers.MOST_IN_MEMORY", 1)
    for one, other in zip(in_memory, Answers(spec, tmp_path).best(found.trials), strict=True):
        assert one.trial == other.trial
        assert one.step.total_s == other.step.total_s == one.trial.step_time_s
        np.testing.assert_array_equal(one.device_of, other.device_of)


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"placers": ("pipedream",)}, "placer 'pipedream' is one of pipelines, and none is asked for; use "),
        ({"placers": ("single", "single")}, "placer 'single' is given twice"),
        ({"clusters": (make_cluster(2), make_cluster(3))}, "cluster 'toy' is given twice"),
        ({"graphs": ()}, "no graph is left"),
        ({"given": {("a", "two", "heft"): Placement(np.zeros(1, dtype=np.int64))}}, "rename it"),
        (
            {"given": {("a", "two", "mine\x1b"): Placement(np.zeros(1, dtype=np.int64))}},
            r"placement 'mine\\x1b' has a name .*; rename it",
        ),
    ],
)
def test_specifications_that_cannot_be_made_are_refused(changes, clause):
    with pytest.raises(ValueError, match=clause):
        small_spec(**changes)


def test_a_cluster_too_small_for_every_graph_is_refused():
    small = make_cluster(2, memory_bytes=0.6 * GB, name="small")
    with pytest.raises(InfeasibleError, match="graph 'a' on cluster 'small'"):
        small_spec(clusters=(small,)).check_feasible()
    small_spec(clusters=(make_cluster(2, memory_bytes=1.8 * GB),)).check_feasible()


def test_a_placement_that_does_not_fit_is_neither_best_nor_compared(tmp_path):
    write_results(
        tmp_path / "results.csv", [make_trial(), make_trial(placer="q", step_time_s=1.0, feasible=False)]
    )
    columns = ("step_time_s", "feasible", "ratio_to_best", "ratio_to_single")
    fits, overflows = ([row[column] for column in columns] for row in rows_of(tmp_path))
    assert fits == ["2.0", "true", "1.0", "0.5"]
    assert overflows == ["1.0", "false", "", ""]


def test_summary_of_a_hand_made_evaluation():
    steps = [("g", 0, 2.0), ("h", 0, 1.0), ("g", 1, 4.0), ("h", 1, 1.0), ("k", 0, 1.0), ("k", 1, 9.0)]
    trials = [
        make_trial(graph=graph, seed=seed, step_time_s=step_s, feasible=step_s < 9.0)
        for graph, seed, step_s in steps
    ]
    (line,) = summarise(trials)
    assert (line.graphs, line.seeds) == (3, 2)
    assert line.step_time_s == pytest.approx((2.0 * 4.0) ** 0.2)
    assert line.ratio_to_single == pytest.approx((0.5 * 0.25 * 1.0 * 0.25 * 0.25) ** 0.2)
    assert line.ratio_to_best == pytest.approx(2 ** (1 / 5))
    means = math.sqrt(0.5 * 0.25), math.sqrt(1.0 * 0.25)
    assert line.seed_spread == pytest.approx(abs(means[0] - means[1]) / math.sqrt(2))
    assert line.feasible_share == pytest.approx(5 / 6)


def test_geometric_mean_of_nothing_is_none():
    assert geometric_mean([None]) is None
    assert geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([0.0, 8.0]) == 0.0


def test_report_is_one_file_that_escapes_names(tmp_path):
    trials = [make_trial(family="<script>"), make_trial(family="<script>", placer="q", feasible=False)]
    write_report(tmp_path / "report.html", trials, "evaluate.py --graphs '<b>' \udcff")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<script>") == 1  # the page's own
    assert "&lt;script&gt; on c" in page
    assert "\\udcff" in page
    assert "http" not in page
    assert page.count('<svg width="') == 2
    assert "<th>ms</th>" in page
    assert "<td>2,000</td>" in page
    assert "simulated, not measured" in page
    assert page.count('<div class="wide"><table') == page.count("<table") == 2
    assert '<meta name="viewport" content="width=device-width' in page
    assert "its red line is the lower bound" in page


def test_cells_of_csv_files_are_no_formulas(tmp_path):
    cells = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "a=1", "", -1.5, None]
    write_csv(tmp_path / "rows.csv", [str(index) for index in range(len(cells))], [cells])
    with (tmp_path / "rows.csv").open(newline="") as file:
        _, row = csv.reader(file)
    assert row == ["'=1+1", "'+1", "'-1", "'@x", r"\t=1", r"\r=1", "a=1", "", "-1.5", ""]


def test_a_row_of_data_parallelism_tells_the_seconds_per_batch_and_leaves_no_placement(tmp_path):
    spec = small_spec(placers=("single", "data-parallel"))
    trials = evaluate(spec, tmp_path, report=quiet).trials
    expected = simulate_data_parallel(Problem(spec.graphs[0], spec.clusters[0]))
    assert [trial.placer for trial in trials] == ["single", "data-parallel"] * 2
    assert trials[1].step_time_s == expected.seconds_per_batch < trials[0].step_time_s
    assert trials[1].lower_bound_s == trials[0].lower_bound_s
    single, parallel = rows_of(tmp_path)[:2]
    assert single["ratio_to_best"] == "1.0"
    assert float(parallel["ratio_to_best"]) == pytest.approx(trials[1].step_time_s / trials[0].step_time_s)
    assert {path.stem for path in (tmp_path / "placements").rglob("*.json")} == {"single"}
    again = evaluate(spec, tmp_path, report=quiet).trials
    assert again == trials


def test_data_parallelism_is_never_the_best_placement_and_has_no_ratio_to_the_bound():
    placed = make_trial(placer="p", step_time_s=2.0)
    parallel = make_trial(placer="data-parallel", step_time_s=0.5)
    assert best_times([parallel, placed]) == {("g", "c"): 2.0}
    lines = {line.placer: line for line in summarise([placed, parallel])}
    assert (lines["p"].ratio_to_best, lines["p"].ratio_to_bound) == (1.0, 2.0)
    assert (lines["data-parallel"].ratio_to_best, lines["data-parallel"].ratio_to_bound) == (0.25, None)


def test_where_no_replica_has_the_memory_the_row_is_infeasible(tmp_path):
    spec = small_spec(
        placers=("data-parallel",), clusters=(make_cluster(2, memory_bytes=2.5 * GB, name="two"),)
    )
    trial = evaluate(spec, tmp_path, report=quiet).trials[0]
    assert not trial.feasible
    assert trial.ratio_to_single is None
