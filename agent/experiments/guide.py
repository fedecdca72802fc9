"""Tests if a guide that learned from solved graphs helps `exact`: graphs closed, and gaps, in equal time.

`python -m agent.experiments.guide --solved FILE` takes the rows that `agent.experiments.optimality --rows`
wrote. A ridge regression predicts the optimum over what `refine` finds from the bound and the shape of the
graph; it is fitted to the other families. The solver looks below the prediction first. A prediction proves
nothing: where nothing is below it, the solver goes on without. The policy's best placement is the other
guide: the solver tries it first. Source: predict and search, Han et al. 2023 (arXiv 2302.05636).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from agent.bounds.lower_bound import lower_bound_s
from agent.evaluation.policies import EvaluatedPolicy, make_placer, open_policy
from agent.experiments.equal_time.sealed import sealed_graphs
from agent.experiments.launcher import exit_code, markdown_table
from agent.experiments.optimality.problems import few_units
from agent.experiments.optimality.rows import LEVEL
from agent.placers.base import PLACERS, Budget, SearchState
from agent.placers.exact.solver import START_EVALUATIONS, solve
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.shape import shape_of
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError

RIDGE = 1.0
"""Weight of the coefficients, of features in standard deviations."""


@dataclass(frozen=True)
class Row:
    """A problem that the solver had some seconds for.

    Attributes:
        guide: what it was told.
        gap: the best step that was found over the bound that was proven, less 1.
        seconds: until it was closed, or until time was up; those of the guide are not among them.
    """

    graph: str
    family: str
    cluster: str
    n_units: int
    guide: str
    closed: bool
    gap: float
    seconds: float


@dataclass(frozen=True)
class Solved:
    """Graphs whose optimum is known.

    Attributes:
        family: of each, (n,).
        features: float (n, n_features).
        logs: logarithm of the optimum over what `refine` found, (n,).
    """

    family: tuple[str, ...]
    features: FloatArray
    logs: FloatArray

    def predict(self, family: str, features: FloatArray) -> float:
        """Predicts the logarithm for a graph, by a ridge regression on the other families."""
        own = np.array([each != family for each in self.family])
        mean, spread = self.features[own].mean(axis=0), self.features[own].std(axis=0) + 1e-12
        known, logs = (self.features[own] - mean) / spread, self.logs[own]
        weights = np.linalg.solve(
            known.T @ known + RIDGE * np.eye(known.shape[1]), known.T @ (logs - logs.mean())
        )
        return float(logs.mean() + (features - mean) / spread @ weights)


def features_of(problem: Problem, bound_s: float, refined_s: float) -> FloatArray:
    """Makes the features of a prediction, float (n_features,)."""
    known = [np.log(bound_s / refined_s), np.log(problem.scale_s / refined_s), float(problem.n_devices)]
    return np.array([*known, *astuple(shape_of(problem.graph))], dtype=np.float64)


def read_solved(path: Path, problem_of: Callable[[str, int, str], Problem]) -> Solved:
    """Reads the optima that `agent.experiments.optimality` found.

    Args:
        problem_of: makes the problem of a graph's name, a number of units and a cluster.

    Raises:
        InputError: the file holds no such rows.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        least = min(int(row["budget"]) for row in rows)
        coarse = [row for row in rows if row["granularity"] == "op"]
        own = [row for row in coarse if row["placer"] == "refine" and int(row["budget"]) == least]
        family, features, logs = [], [], []
        for row in own:
            name, _, n_units = row["graph"].rpartition("-in-")
            optimum_s = float(row["optimum_s"])
            problem = problem_of(name, int(n_units), row["cluster"])
            refined_s = optimum_s * float(row["found"])
            family.append(row["family"])
            features.append(features_of(problem, optimum_s * float(row["bound"]), refined_s))
            logs.append(-np.log(float(row["found"])))
        return Solved(tuple(family), np.array(features), np.array(logs))
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: holds no rows of agent.experiments.optimality ({error})") from None


def solved_rows(
    problem: Problem, solved: Solved, policy: EvaluatedPolicy, seconds: float, n_units: int
) -> Iterator[Row]:
    """Solves a problem without a start, from what `refine` finds, and with each guide."""
    refined = PLACERS["refine"].place(problem, Budget(START_EVALUATIONS), np.random.default_rng(0))
    beam = make_placer("policy-beam", policy, "topo").place(problem, Budget(1000), np.random.default_rng(0))
    refined_s = refined.step_time.total_s
    features = features_of(problem, lower_bound_s(problem), refined_s)
    predicted_s = refined_s * float(np.exp(solved.predict(problem.graph.family, features)))
    best, best_s = refined.placement.device_of, refined_s

    def row(guide: str, start: IntArray | None, guess: IntArray | None, below_s: float) -> Row:
        nonlocal best, best_s
        search = SearchState(problem, Budget(None, seconds))
        if start is not None:
            search.score(start[None])
        proof = solve(search, guess, below_s)
        if search.best is not None and search.best_score < (0.0, best_s):
            best, best_s = search.best, search.best_score[1]
        gap = search.best_score[1] / proof.bound_s - 1 if proof.bound_s else np.inf
        return Row(
            problem.graph.name,
            problem.graph.family,
            problem.cluster.name,
            n_units,
            guide,
            gap <= LEVEL,
            gap,
            search.elapsed_s,
        )

    start = refined.placement.device_of
    yield row("none, no start", None, None, np.inf)
    yield row("none", start, None, np.inf)
    yield row("devices of the policy", start, beam.placement.device_of, np.inf)
    yield row("predicted step", start, None, predicted_s)
    yield row("best step and devices known", start, best, best_s * (1 + LEVEL))


def table(rows: Sequence[Row]) -> str:
    """A row per guide."""
    body = []
    for guide in dict.fromkeys(row.guide for row in rows):
        own = [row for row in rows if row.guide == guide]
        gaps = [row.gap for row in own]
        cells = [f"{sum(row.closed for row in own)} of {len(own)}", f"{np.median(gaps):.2%}"]
        body.append([guide, *cells, f"{np.mean([row.seconds for row in own]):.1f}"])
    return markdown_table([["guide", "closed", "gap, median", "seconds, mean"], *body])


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print the table; returns 0: done, 1: stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.guide", description=__doc__)
    parser.add_argument("--solved", type=Path, required=True, metavar="FILE", help="rows of optimality")
    parser.add_argument("--clusters", nargs="+", default=["4xv100:2", "4xa100-pcie:2"], metavar="CLUSTER")
    parser.add_argument("--units", type=int, default=24, help="placement units of each graph")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the solver, with each guide")
    parser.add_argument("--known", type=int, default=1, help="draws of each family of the benchmark set")
    parser.add_argument("--new", type=int, default=1, help="draws of each family never used before")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows (.csv)")
    options = parser.parse_args(arguments)

    def work() -> None:
        policy = open_policy("pretrained", [])
        how_seen = policy.stored.card.how_seen
        graphs = sealed_graphs(Path("runs") / "sealed", n_known=2, n_new=3, how_seen=how_seen)
        by_name = {graph.name: graph for graph in graphs}

        def problem_of(name: str, n_units: int, cluster: str) -> Problem:
            return Problem(few_units(by_name[name], n_units), get_cluster(cluster))

        solved = read_solved(options.solved, problem_of)
        chosen = sealed_graphs(
            Path("runs") / "sealed", n_known=options.known, n_new=options.new, how_seen=how_seen
        )
        cases = [(graph.name, cluster) for graph in chosen for cluster in options.clusters]
        rows: list[Row] = []
        for name, cluster in track(cases, "problems", console=Console(stderr=True)):
            problem = problem_of(name, options.units, cluster)
            if problem.is_feasible:
                rows += solved_rows(problem, solved, policy, options.seconds, options.units)
        print(
            f"\noptimum found by refine on {np.mean(solved.logs > -LEVEL):.0%} of {len(solved.logs)} graphs"
        )
        print(f"\n{table(rows)}")
        if options.rows:
            write_csv(options.rows, [item.name for item in fields(Row)], [astuple(row) for row in rows])

    return exit_code("agent.experiments.guide", work)


if __name__ == "__main__":
    sys.exit(main())
