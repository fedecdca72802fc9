"""Declares what is asked about recomputation in compiled steps."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "recomputation",
    Experiment(
        "Which solver saves the right activations for a budget?",
        rows=("recomputation.csv.gz",),
        run="recomputation:recomputation_rows",
        tables="recomputation:recomputation_tables",
        settings={"graphs": (), "rounds": 15},
        quick={"graphs": ("resnet",), "rounds": 1},
    ),
)
