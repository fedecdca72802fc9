"""Declares the benchmark of the field's instances."""

import numpy as np

from agent.lab.bench import LEVEL, InstanceTrials, are_closed, behind_on, compared, instances, source_of
from agent.lab.experiment import EXPERIMENTS, Experiment
from agent.lab.pivot import Across, Pivot, average, count, mean, only

OTHERS = ("heft", "m-topo", "m-etf", "m-sct", "metis", "cross-entropy", "equal-time", "pipedream")

PLACERS = Pivot(
    {"placer": "placer"},
    [
        Across(source_of, mean("step_s", "best_s")),
        ("all over bound", mean("step_s", "bound_s")),
        ("infeasible", only(count, step_s=np.inf)),
        ("seconds, mean", lambda rows: average("cpu_s", ".2f")(rows) if rows[0]["seconds"] else ""),
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
