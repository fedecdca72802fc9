"""How far from optimal placers are, and how loose the lower bound is, on graphs that `exact` closes.

`python -m agent.experiments.optimality` makes what is not made yet in `runs/optimality` and prints the table.
The graphs are those of the sealed set, coarsened to few placement units; their ops count as single ops.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np

from agent.evaluation.policies import EvaluatedPolicy, open_policy
from agent.evaluation.results import Trial
from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import progress_bar
from agent.experiments.equal_time.sealed import sealed_graphs
from agent.experiments.launcher import exit_code, markdown_table
from agent.placers.base import Budget
from envs.cluster.presets import get_cluster
from graphs.coarsening.coarsen import coarsen
from graphs.command_line import OneLineParser
from graphs.io.csv_files import write_csv
from graphs.op_graph import OpGraph

FOLDER = Path("runs") / "optimality"
PLACERS = (
    *("heft", "m-etf", "rollout", "local-search", "annealing", "refine", "rollout-beam", "rollout-refine"),
    *("policy", "policy-beam", "policy-refine"),
)
LEVEL = 1e-6
"""Steps that differ by less, as a share, are equal."""


@dataclass(frozen=True)
class Setting:
    """What is placed where.

    Attributes:
        n_units: placement units that graphs are coarsened to.
    """

    cluster: str
    n_units: int

    @property
    def folder(self) -> Path:
        """Holds the evaluations."""
        return FOLDER / f"{self.cluster.replace(':', '-')}-{self.n_units}"


SETTINGS = tuple(
    Setting(cluster, n_units)
    for name in ("4xv100", "4xa100-pcie")
    for cluster, n_units in ((f"{name}:2", 16), (f"{name}:2", 32), (f"{name}:3", 10), (name, 8))
)
"""All placements of the units are tried, but for 32 units, where it is up to the solver."""


@dataclass(frozen=True)
class Row:
    """What a placer found on a graph that `exact` closed.

    Attributes:
        optimum_s: step time of the best placement there is.
        single: the fastest single device's step time, over the optimum.
        bound: lower bound that is known without `exact`, over the optimum.
        placer: that was asked, with so many evaluations.
        found: step time that it found, over the optimum.
    """

    graph: str
    family: str
    cluster: str
    n_units: int
    optimum_s: float
    single: float
    bound: float
    budget: int
    placer: str
    found: float
    evaluations: int
    cpu_s: float


def few_units(graph: OpGraph, n_units: int) -> OpGraph:
    """A graph coarsened to at most so many units, as a graph of its own."""
    return replace(coarsen(graph, n_units).coarse, name=f"{graph.name}-in-{n_units}")


def rows_of(setting: Setting, proofs: Sequence[Trial], trials: Sequence[Trial], budget: int) -> Iterator[Row]:
    """Compares trials with the optima of the graphs that were closed.

    Args:
        proofs: trials of `exact`.
        trials: of other placers, with a budget of evaluations.
    """
    optimum_s = {
        trial.graph: trial.step_time_s
        for trial in proofs
        if trial.feasible and trial.lower_bound_s >= trial.step_time_s * (1 - LEVEL)
    }
    for trial in trials:
        if trial.graph in optimum_s and trial.feasible:
            best_s = optimum_s[trial.graph]
            yield Row(
                trial.graph,
                trial.family,
                setting.cluster,
                setting.n_units,
                best_s,
                trial.single_s / best_s,
                trial.lower_bound_s / best_s,
                budget,
                trial.placer,
                trial.step_time_s / best_s,
                trial.evaluations,
                trial.cpu_s,
            )


def is_trivial(row: Row) -> bool:
    """Whether the fastest single device is optimal."""
    return row.single <= 1 + LEVEL


def table(rows: Sequence[Row]) -> str:
    """A row per budget and placer, of the graphs where one device is not optimal."""
    head = ["evaluations", "placer", "graphs", "optimal", "over the optimum, mean", "greatest", "CPU s, mean"]
    body = []
    hard = [row for row in rows if not is_trivial(row)]
    for budget, placer in dict.fromkeys((row.budget, row.placer) for row in hard):
        own = [row for row in hard if (row.budget, row.placer) == (budget, placer)]
        found = np.array([row.found for row in own])
        mean, optimal = np.exp(np.log(found).mean()), (found <= 1 + LEVEL).mean()
        cells = [f"{optimal:.0%}", f"{mean:.4f}", f"{found.max():.3f}"]
        body.append(
            [str(budget), placer, str(len(own)), *cells, f"{np.mean([row.cpu_s for row in own]):.3f}"]
        )
    return markdown_table([head, *body])


def closed_table(rows: Sequence[Row], n_graphs: int) -> str:
    """A row per setting: how many graphs are closed, and how tight the bound is on them."""
    head = [
        "cluster",
        "units",
        "graphs",
        "closed",
        "one device is optimal",
        "bound over optimum, mean",
        "least",
    ]
    body = []
    for cluster, n_units in dict.fromkeys((row.cluster, row.n_units) for row in rows):
        by_graph = {row.graph: row for row in rows if (row.cluster, row.n_units) == (cluster, n_units)}
        bounds = np.array([row.bound for row in by_graph.values()])
        trivial = sum(is_trivial(row) for row in by_graph.values())
        mean = np.exp(np.log(bounds).mean())
        cells = [str(n_graphs), str(len(by_graph)), str(trivial), f"{mean:.3f}", f"{bounds.min():.3f}"]
        body.append([cluster, str(n_units), *cells])
    return markdown_table([head, *body])


def _found(
    setting: Setting,
    graphs: Sequence[OpGraph],
    policy: EvaluatedPolicy,
    seconds: float,
    budgets: Sequence[int],
) -> Iterator[Row]:
    """Makes the evaluations of a setting that are not made yet."""

    def trials(name: str, placers: tuple[str, ...], budget: Budget) -> list[Trial]:
        spec = EvaluationSpec(
            graphs=tuple(few_units(graph, setting.n_units) for graph in graphs),
            clusters=(get_cluster(setting.cluster),),
            placers=placers,
            budget=budget,
            policy=policy,
        )
        with progress_bar() as (report, show_time_left):
            folder = setting.folder / name
            return evaluate(spec, folder, report=report, show_time_left=show_time_left).trials

    proofs = trials(f"exact-{seconds:g}-s", ("exact",), Budget(None, seconds))
    for budget in budgets:
        yield from rows_of(setting, proofs, trials(f"{budget}", PLACERS, Budget(budget)), budget)


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, print the tables; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.optimality", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a proof")
    parser.add_argument("--evaluations", nargs="+", type=int, default=[300, 10_000], help="budgets")
    parser.add_argument("--known", type=int, default=1, help="draws of each family of the benchmark set")
    parser.add_argument("--new", type=int, default=1, help="draws of each family never used before")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows (.csv)")
    options = parser.parse_args(arguments)

    def work() -> None:
        policy = open_policy("pretrained", [])
        graphs = sealed_graphs(
            Path("runs") / "sealed",
            n_known=options.known,
            n_new=options.new,
            how_seen=policy.stored.card.how_seen,
        )
        rows: list[Row] = []
        for setting in SETTINGS:
            rows += _found(setting, graphs, policy, options.seconds, options.evaluations)
        print(f"\n{closed_table(rows, len(graphs))}\n\n{table(rows)}")
        if options.rows:
            columns = [item.name for item in fields(Row)]
            write_csv(options.rows, columns, [astuple(row) for row in rows])

    return exit_code("agent.experiments.optimality", work)


if __name__ == "__main__":
    sys.exit(main())
