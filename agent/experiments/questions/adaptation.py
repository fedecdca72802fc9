"""Declares what is asked about searches that measure."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "adaptation",
    Experiment(
        "What do few measurements gain?",
        rows=("adaptation.csv.gz",),
        run="adaptation.answer:regret_rows",
        tables="adaptation.answer:regret_tables",
        settings={
            "clusters": ("4xv100-sxm2", "4xa100-pcie", "3090+2080+titan"),
            "known": 3,
            "seeds": 3,
            "evaluations": 5000,
        },
        quick={"clusters": ("4xv100-sxm2",), "known": 1, "seeds": 1, "evaluations": 1000},
    ),
)
