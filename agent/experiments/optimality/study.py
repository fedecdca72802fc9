"""The distance of placers from the optimum, and of the lower bound, on graphs that `exact` closes.

`python -m agent.experiments.optimality` makes what is not made yet in `runs/optimality` and prints tables.
The graphs are those of the sealed set. One draw of each family is coarsened to few placement units; its
coarse ops count as single ops. Graphs are placed whole as well, by the finest of module, block and layer
whose placements can all be tried; all their ops are timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields
from pathlib import Path

from agent.evaluation.policies import EvaluatedPolicy, open_policy
from agent.evaluation.results import Trial
from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import progress_bar
from agent.experiments.equal_time.sealed import sealed_graphs
from agent.experiments.launcher import exit_code
from agent.experiments.optimality.problems import SETTINGS, Setting
from agent.experiments.optimality.rows import OptimalityRow, closed_table, rows_of, table
from agent.placers.base import Budget
from envs.cluster.presets import get_cluster
from graphs.op_graph import OpGraph
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv

PLACERS = (
    *("heft", "m-etf", "rollout", "local-search", "annealing", "refine", "rollout-beam", "rollout-refine"),
    *("policy", "policy-beam", "policy-refine"),
)


def _found(
    setting: Setting,
    graphs: Sequence[OpGraph],
    policy: EvaluatedPolicy,
    seconds: float,
    budgets: Sequence[int],
) -> Iterator[OptimalityRow]:
    """Makes the evaluations of a setting that are not made yet."""

    def trials(name: str, placers: tuple[str, ...], budget: Budget) -> list[Trial]:
        spec = EvaluationSpec(
            graphs=tuple(graphs),
            clusters=(get_cluster(setting.cluster),),
            placers=placers,
            budget=budget,
            policy=policy,
            granularity=setting.granularity,
        )
        with progress_bar() as (report, show_time_left):
            folder = setting.folder / name
            return evaluate(spec, folder, report=report, show_time_left=show_time_left).trials

    proofs = trials(f"exact-{seconds:g}-s", ("exact",), Budget(None, seconds))
    by_name = {graph.name: graph for graph in graphs}
    for budget in budgets:
        yield from rows_of(setting, by_name, proofs, trials(f"{budget}", PLACERS, Budget(budget)), budget)


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, print the tables; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.optimality", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of a proof where all is tried")
    parser.add_argument("--solver-seconds", type=float, default=20.0, help="of a proof by the solver")
    parser.add_argument("--evaluations", nargs="+", type=int, default=[300, 3_000, 10_000], help="budgets")
    parser.add_argument("--known", type=int, default=1, help="draws to place whole, of each known family")
    parser.add_argument("--new", type=int, default=1, help="draws to place whole, of each family never used")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows (.csv)")
    options = parser.parse_args(arguments)

    def work() -> None:
        policy = open_policy("pretrained", [])
        how_seen = policy.stored.card.how_seen

        def sealed(n_known: int, n_new: int) -> list[OpGraph]:
            return sealed_graphs(Path("runs") / "sealed", n_known=n_known, n_new=n_new, how_seen=how_seen)

        first, whole = sealed(1, 1), sealed(options.known, options.new)
        rows: list[OptimalityRow] = []
        n_graphs: dict[Setting, int] = {}
        for setting in SETTINGS:
            graphs = setting.graphs(first if setting.n_units else whole)
            n_graphs[setting] = len(graphs)
            if graphs:
                seconds = options.seconds if setting.can_be_tried else options.solver_seconds
                rows += _found(setting, graphs, policy, seconds, options.evaluations)
        print(f"\n{closed_table(rows, n_graphs)}\n\n{table(rows)}")
        if options.rows:
            columns = [item.name for item in fields(OptimalityRow)]
            write_csv(options.rows, columns, [astuple(row) for row in rows])

    return exit_code("agent.experiments.optimality", work)
