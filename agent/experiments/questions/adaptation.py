"""Declares what is asked about searches that measure."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "adapt",
    Experiment(
        "What do few measurements gain?",
        rows=("adapt.csv.gz",),
        run="adaptation.answer:regret_rows",
        tables="adaptation.answer:regret_tables",
        settings={
            "clusters": ("4xv100-sxm2", "4xa100-pcie", "3090+2080+titan"),
            "families": (),
            "new": 2,
            "first_seed": 3000,
            "worlds": 2,
            "evaluations": 10_000,
        },
        quick={
            "clusters": ("4xv100-sxm2",),
            "families": ("mixer",),
            "new": 1,
            "worlds": 1,
            "evaluations": 1000,
        },
    ),
)
