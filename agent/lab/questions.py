"""Experiments, one a question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent.lab.bench import LEVEL, InstanceTrials, are_closed, behind_on, compared, instances, source_of
from agent.lab.measured_clusters import TABLES, PublishedRuns
from agent.lab.pivot import (
    LATE,
    PROBLEM,
    Across,
    ExperimentError,
    Pivot,
    Row,
    Rows,
    count,
    grouped,
    mean,
    only,
    over,
    read_table,
)
from agent.lab.trials import LARGE_OPS, NO_MODULES, RANDOM, SealedTrials
from graphs.system.registry import Registry

RESULTS = Path(__file__).parent / "results"
"""Folder of the pages and their rows."""


@dataclass(frozen=True)
class Experiment:
    """A question, and the rows that answer it.

    Attributes:
        question: one line.
        tables: tables of the page.
        rows: name of the file of rows.
        run: maker of the rows, with the settings of the page.
        quick: other settings of a run that only shows that it works, in about a minute.
    """

    question: str
    tables: Sequence[Pivot]
    rows: str
    run: InstanceTrials | SealedTrials | PublishedRuns
    quick: Mapping[str, Any]

    def show(self, folder: Path) -> str:
        """Formats the tables of the rows in a folder.

        Raises:
            ExperimentError: the folder has no rows, or they lack a column.
        """
        if not (folder / self.rows).exists():
            lacking = f"{folder}: has no {self.rows}"
            raise ExperimentError(f"{lacking}; run without --only, or give --out the folder of a run")
        rows = read_table(folder / self.rows)
        try:
            return "\n\n".join(table.markdown(rows) for table in self.tables)
        except KeyError as error:
            raise ExperimentError(f"{folder}: the rows have no column {error}") from None


EXPERIMENTS = Registry[Experiment]("experiment", ExperimentError, ())
"""Experiments by name, which is that of a page; other pages are frozen and name the commit of their code."""


UNLEARNED = ("local-search", "annealing", "refine", "rollout", "rollout-refine")
LEARNED = ("policy", "policy-refine")
OTHERS = ("heft", "m-topo", "m-etf", "m-sct", "metis", "equal-time", "pipedream")


def mean_seconds(rows: Rows) -> str:
    """Formats the mean processor seconds of a placer that was run."""
    return f"{np.mean([row['cpu_s'] for row in rows]):.2f}" if rows[0]["seconds"] else ""


PLACERS = Pivot(
    {"placer": "placer"},
    [
        Across(source_of, mean("step_s", "best_s")),
        ("all over bound", mean("step_s", "bound_s")),
        ("infeasible", only(count, step_s=np.inf)),
        ("seconds, mean", mean_seconds),
    ],
)
SOURCES = Pivot(
    {"source": source_of},
    [
        ("instances", instances(count)),
        ("closed", instances(are_closed)),
        ("best known over bound", instances(mean("best_s", "bound_s"))),
        ("ahead", compared(lambda ratio: ratio < 1 - LEVEL)),
        ("level", compared(lambda ratio: abs(ratio - 1) <= LEVEL)),
        ("behind", compared(lambda ratio: ratio > 1 + LEVEL)),
        ("behind on", behind_on),
    ],
    total="all",
)
EXPERIMENTS.register(
    "benchmark",
    Experiment(
        "Who is ahead on the instances of the field?",
        rows="benchmark.csv.gz",
        tables=[PLACERS, SOURCES],
        run=InstanceTrials(("*",), ("auto", "refine", *OTHERS), 1.0),
        quick={"graphs": ("doppler:*",), "placers": ("refine", "heft"), "seconds": 0.1},
    ),
)


def size_of(row: Row) -> str:
    """Names the size of a graph, with the granularity if that is not the op."""
    size = f"{LARGE_OPS:,} ops and more" if row["n_ops"] >= LARGE_OPS else f"below {LARGE_OPS:,} ops"
    return size if row["granularity"] == "op" else f"{size}, {row['granularity']}"


def budget_of(row: Row) -> str:
    """Names the budget of a trial."""
    return f"{row['seconds']:g} s" if row["seconds"] else f"{row['budget']:,} evaluations"


def most_late(rows: Rows) -> str:
    """Formats the most that a placer took beyond its budget."""
    return f"{max(row['cpu_s'] - row['seconds'] for row in rows) * 1e3:.0f} ms"


def far_behind(rows: Rows) -> str:
    """Counts trials of `auto`, and those over 5 % behind the best unlearned one that keeps the budget."""
    cases = grouped(rows, lambda row: tuple(row[key] for key in (*PROBLEM, "seed")))
    n_behind = 0
    for trials in cases.values():
        ours_s = min(row["step_s"] for row in trials if row["placer"] == "auto")
        others = (
            row for row in trials if row["placer"] in UNLEARNED and row["cpu_s"] <= LATE * row["seconds"]
        )
        n_behind += ours_s > 1.05 * min((row["step_s"] for row in others), default=np.inf)
    return f"{n_behind} of {len(cases)}"


def over_best(*placers: str) -> Pivot:
    """Makes the table of `auto` over the best of other placers, by cluster, size and budget."""
    return Pivot({"cluster": "cluster", "graphs": size_of}, [Across(budget_of, over("auto", *placers))])


EXPERIMENTS.register(
    "budgets",
    Experiment(
        "Which placer for which budget?",
        rows="budgets.csv.gz",
        tables=[
            over_best(*UNLEARNED),
            over_best(*UNLEARNED, *LEARNED),
            over_best(f"auto-{RANDOM}"),
            Pivot(
                {"budget": budget_of},
                [
                    ("most that `auto` took beyond it", only(most_late, placer="auto")),
                    ("far behind", far_behind),
                ],
                where=lambda row: row["seconds"] is not None,
            ),
        ],
        run=SealedTrials(
            placers=("auto", *UNLEARNED, *LEARNED, f"auto@{RANDOM}"),
            clusters=("4xv100", "4xa100-pcie"),
            seconds=(0.03, 0.1, 0.3, 1.0),
            granularities=("op", NO_MODULES),
        ),
        quick={"seconds": (0.03, 0.1), "granularities": ("op",), "families": ("cifar10", "unet")},
    ),
)


EXPERIMENTS.register(
    "measured_clusters",
    Experiment(
        "How wrong are steps predicted of several GPUs?",
        rows="measured_clusters.csv",
        tables=TABLES,
        run=PublishedRuns(),
        quick={"graphs": ("gpt-j-6b",)},
    ),
)
