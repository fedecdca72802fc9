"""Placers in equal time, from 10 ms to 10 s, on the sealed test set.

`python -m agent.experiments.equal_time` makes what is not made yet and prints the tables. Each budget is an
evaluation of its own in `runs/equal-time/NAME`. The baseline is `refine`, the best placer that learned
nothing. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from agent.evaluation.policies import open_policy
from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import progress_bar
from agent.experiments.equal_time.paired import Paired, pair
from agent.experiments.equal_time.sealed import ALL, FIRST_SEED, STANDARD, sealed_graphs
from agent.experiments.launcher import exit_code, markdown_table
from agent.experiments.statistics import read_trials
from agent.placers.base import Budget
from envs.cluster.presets import get_cluster
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv

FOLDER = Path("runs") / "equal-time"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
BASELINE = "refine"
HEURISTICS = ("heft", "m-etf", "rollout")
SEARCHES = ("local-search", "annealing", "refine", "rollout-beam", "rollout-refine")
LEARNED = ("policy", "policy-beam", "policy-refine")
PLACERS = (*HEURISTICS, *SEARCHES, *LEARNED)


def folder_of(study: Path, seconds: float) -> Path:
    """Folder of the evaluation with one budget."""
    return study / f"{seconds:g}-s"


def compare(study: Path, seconds: Sequence[float]) -> list[Paired]:
    """Each placer over the baseline, by budget."""
    found: list[Paired] = []
    for budget in seconds:
        folder = folder_of(study, budget)
        if folder.is_dir():
            found += pair(read_trials(folder), BASELINE, budget)
    return found


def table(found: Sequence[Paired], value: str) -> str:
    """A row per placer, a column per budget."""
    budgets = list(dict.fromkeys(each.seconds for each in found))
    cells = {(each.placer, each.seconds): each.cell(value) for each in found}
    rows = [
        [placer, *(cells.get((placer, budget), "") for budget in budgets)]
        for placer in dict.fromkeys(each.placer for each in found)
    ]
    return markdown_table([["placer", *(f"{budget:g} s" for budget in budgets)], *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, print the tables; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.equal_time", description=__doc__)
    parser.add_argument("--seconds", nargs="+", type=float, default=list(SECONDS), help="budgets")
    parser.add_argument("--cluster", default="4xv100")
    parser.add_argument("--placers", nargs="+", default=list(PLACERS), metavar="PLACER")
    parser.add_argument("--seeds", type=int, default=1, help="of the searches")
    parser.add_argument("--known", type=int, default=2, help="draws of each family of the benchmark set")
    parser.add_argument("--new", type=int, default=3, help="draws of each family never used before")
    parser.add_argument(
        "--families", nargs="+", default=list(STANDARD), metavar="FAMILY", help=f"of {', '.join(ALL)}"
    )
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the draws")
    parser.add_argument("--name", help="of the folder in runs/equal-time (default: the cluster's name)")
    parser.add_argument("--only", choices=("table",), help="do only this part")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw quality over time (.svg)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows of the tables (.csv)")
    options = parser.parse_args(arguments)

    study = FOLDER / (options.name or options.cluster)

    def work() -> None:
        if options.only is None:
            policy = open_policy("pretrained", [])
            graphs = sealed_graphs(
                Path("runs") / "sealed",
                n_known=options.known,
                n_new=options.new,
                how_seen=policy.stored.card.how_seen,
                families=options.families,
                first_seed=options.first_seed,
            )
            for seconds in options.seconds:
                spec = EvaluationSpec(
                    graphs=tuple(graphs),
                    clusters=(get_cluster(options.cluster),),
                    placers=tuple(options.placers),
                    seeds=options.seeds,
                    budget=Budget(None, seconds),
                    policy=policy,
                )
                with progress_bar() as (report, show_time_left):
                    folder = folder_of(study, seconds)
                    evaluate(spec, folder, report=report, show_time_left=show_time_left)
        found = compare(study, options.seconds)
        print(f"\nStep time over {BASELINE} in equal time, 95 % intervals over families, graphs and seeds:\n")
        print(table(found, "ratio"))
        print(f"\nGraphs won and lost against {BASELINE} by more than 0.1 %:\n")
        print(table(found, "wins"))
        print("\nStep time over one device:\n")
        print(table(found, "to_single"))
        print("\nProcessor seconds that were taken, mean:\n")
        print(table(found, "taken"))
        if options.rows:
            columns = [item.name for item in fields(Paired)]
            write_csv(options.rows, columns, [astuple(each) for each in found])
        if options.figure:
            from agent.experiments.equal_time.figure import draw_quality_over_time

            options.figure.write_bytes(draw_quality_over_time(found))

    return exit_code("agent.experiments.equal_time", work)
