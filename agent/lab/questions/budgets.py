"""Declares what is asked about placers by budget, size and cluster."""

from agent.lab.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "budgets",
    Experiment(
        "Which placer for which budget?",
        rows=("budgets.csv.gz",),
        run="equal_time.budgets:budget_rows",
        tables="equal_time.budgets:budget_tables",
        settings={
            "seconds": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
            "granularities": ("op", "module"),
            "families": (),
            "seeds": 1,
            "first_seed": 4000,
        },
        quick={"seconds": (0.03, 0.1), "granularities": ("op",), "families": ("cifar10", "unet")},
        fixed={
            "clusters": ("4xv100", "4xa100-pcie"),
            "unlearned": ("local-search", "annealing", "refine", "rollout", "rollout-refine"),
            "learned": ("policy", "policy-refine"),
        },
    ),
)
