"""Declares what is asked about simulated and measured times."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "costs_of_ops",
    Experiment(
        "How wrong are the costs of ops?",
        rows=("costs_of_ops.csv", "costs_of_ops_ranks.csv"),
        tables="recorded_costs:op_tables",
    ),
)
EXPERIMENTS.register(
    "costs_of_steps",
    Experiment(
        "How wrong are simulated steps of one GPU?",
        rows=("costs_of_steps.csv", "costs_of_steps_held_back.csv"),
        run="fidelity.steps:step_rows",
        tables="fidelity.steps:step_tables",
        settings={"steps_in": ""},
    ),
)
for name, rows, tables, question in (
    ("costs_of_links", "costs_of_links.csv.gz", "link", "How wrong are predicted transfers?"),
    (
        "costs_of_layers",
        "costs_of_layers.csv",
        "layer",
        "How wrong are costs on boards without measurements?",
    ),
    ("calibrated_costs", "calibrated_costs.csv", "placement", "What do calibrated costs change?"),
    ("measured_placements", "measured_placements.csv", "measured", "How wrong are simulated placements?"),
):
    EXPERIMENTS.register(name, Experiment(question, (rows,), f"recorded_costs:{tables}_tables"))
