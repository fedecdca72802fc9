"""Declares what is asked about the lower bound."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "bounds",
    Experiment(
        "How tight is the lower bound?",
        rows=tuple(f"bounds_{level}.csv" for level in ("op", "module", "block", "layer")),
        run="bounds:by_level",
        tables="bounds:levels_tables",
        settings={"families": (), "cluster": "4xv100", "evaluations": 10_000},
        quick={"families": ("cifar10",), "evaluations": 100},
    ),
)
EXPERIMENTS.register(
    "bounds_memory",
    Experiment(
        "What does memory add to the lower bound?",
        rows=tuple(
            f"bounds_memory_{cluster}_{level}.csv"
            for cluster in ("gpu+cpu", "a100+v100")
            for level in ("op", "module")
        ),
        run="bounds:with_little_memory",
        tables="bounds:memory_tables",
        settings={"families": (), "scarce": 0.25, "evaluations": 1},
        quick={"families": ("cifar10",)},
    ),
)
