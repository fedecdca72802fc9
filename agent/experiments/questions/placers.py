"""Declares what is asked about placers and what they place."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "optimality",
    Experiment(
        "How far from optimal are placements?",
        rows=("optimality.csv",),
        run="optimality.answer:optimality_rows",
        tables="optimality.rows:optimality_tables",
        settings={
            "clusters": (),
            "seconds": 600.0,
            "solver_seconds": 20.0,
            "budgets": (300, 3_000, 10_000),
            "known": 1,
            "new": 1,
        },
        quick={"clusters": ("4xv100",), "seconds": 3.0, "budgets": (300,)},
    ),
)
EXPERIMENTS.register(
    "coarsening",
    Experiment(
        "What does placing groups of ops cost?",
        rows=("coarsening.csv",),
        tables="recorded:coarsening_tables",
    ),
)
EXPERIMENTS.register(
    "module_moves",
    Experiment(
        "What do moves of whole modules gain?",
        rows=("module_moves.csv",),
        tables="recorded:moves_tables",
    ),
)
EXPERIMENTS.register(
    "granularity",
    Experiment(
        "What does placing whole modules cost?",
        rows=("granularity.csv",),
        tables="recorded:granularity_tables",
    ),
)
