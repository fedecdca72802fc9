"""Declares what is asked about placers and what they place."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "optimality",
    Experiment(
        "How far from optimal are placements?",
        rows=("optimality.csv",),
        tables="optimality:optimality_tables",
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
EXPERIMENTS.register(
    "neighbourhoods",
    Experiment(
        "Can a network choose the neighbourhoods of a search?",
        rows=("neighbourhoods.csv.gz",),
        tables="recorded:neighbourhoods_tables",
    ),
)
