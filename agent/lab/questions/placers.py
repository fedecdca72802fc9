"""Declares what is asked about placers: on the instances of the field, and by budget, size and cluster."""

import numpy as np

from agent.lab.bench import LEVEL, InstanceTrials, are_closed, behind_on, compared, instances, source_of
from agent.lab.experiment import EXPERIMENTS, Experiment
from agent.lab.pivot import Across, Pivot, Row, Rows, count, mean, only, over
from agent.lab.trials import LARGE_OPS, RANDOM, SealedTrials

UNLEARNED = ("local-search", "annealing", "refine", "rollout", "rollout-refine")
LEARNED = ("policy", "policy-refine")
OTHERS = ("heft", "m-topo", "m-etf", "m-sct", "metis", "cross-entropy", "equal-time", "pipedream")


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
        rows=["benchmark.csv.gz"],
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


def over_best(*placers: str) -> Pivot:
    """Makes the table of `auto` over the best of other placers, by cluster, size and budget."""
    return Pivot({"cluster": "cluster", "graphs": size_of}, [Across(budget_of, over("auto", *placers))])


EXPERIMENTS.register(
    "budgets",
    Experiment(
        "Which placer for which budget?",
        rows=["budgets.csv.gz"],
        tables=[
            over_best(*UNLEARNED),
            over_best(*UNLEARNED, *LEARNED),
            over_best(f"auto-{RANDOM}"),
            Pivot(
                {"budget": budget_of},
                [("most that `auto` took beyond it", most_late)],
                where=lambda row: row["placer"] == "auto" and row["seconds"] is not None,
            ),
        ],
        run=SealedTrials(
            placers=("auto", *UNLEARNED, *LEARNED, f"auto@{RANDOM}"),
            clusters=("4xv100", "4xa100-pcie"),
            seconds=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
            granularities=("op", "module"),
        ),
        quick={"seconds": (0.03, 0.1), "granularities": ("op",), "families": ("cifar10", "unet")},
    ),
)
