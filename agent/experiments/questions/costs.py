"""Declares what is asked about simulated and measured times."""

from __future__ import annotations

from agent.experiments.experiment import EXPERIMENTS, Experiment


def declare(name: str, question: str, rows: tuple[str, ...], kind: str, **settings: object) -> None:
    """Registers an experiment that compares measurements of one kind."""
    run, tables = f"fidelity.answer:{kind}_rows", f"fidelity.answer:{kind}_tables"
    EXPERIMENTS.register(name, Experiment(question, rows, tables, run, settings))


declare(
    "costs_of_ops",
    "How wrong are the costs of ops?",
    ("costs_of_ops.csv", "costs_of_ops_ranks.csv"),
    "op",
    files=(),
)
declare(
    "costs_of_steps",
    "How wrong are simulated steps of one GPU?",
    ("costs_of_steps.csv", "costs_of_steps_held_back.csv"),
    "step",
    steps_in="",
)
declare("costs_of_links", "How wrong are predicted transfers?", ("costs_of_links.csv.gz",), "link", files=())
question = "How wrong are costs on boards without measurements?"
declare("costs_of_layers", question, ("costs_of_layers.csv",), "layer", files=())
EXPERIMENTS.register(
    "calibrated_costs",
    Experiment(
        "What do calibrated costs change?",
        rows=("calibrated_costs.csv",),
        run="fidelity.answer:placement_rows",
        tables="fidelity.answer:placement_tables",
        settings={
            "old": ("4xv100", "8xa100", "4xh100"),
            "to": ("4xv100-sxm2", "8xa100-sxm4", "4xh100-sxm5"),
            "families": (),
            "per_family": 2,
            "evaluations": 10_000,
            "jobs": 1,
        },
        quick={"old": ("4xv100",), "to": ("4xv100-sxm2",), "families": ("cifar10",), "evaluations": 100},
    ),
)
EXPERIMENTS.register(
    "measured_placements",
    Experiment(
        "How wrong are simulated placements?",
        rows=("measured_placements.csv",),
        tables="recorded:measured_tables",
    ),
)
