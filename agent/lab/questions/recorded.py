"""Declares the settled questions: their rows are not made again; pages name the code that made them."""

from agent.lab.experiment import EXPERIMENTS, Experiment

LEVELS = ("op", "module", "block", "layer")
SETTLED = {
    "placers": {
        "optimality": "How far from optimal are placements?",
        "coarsening": "What does placing groups of ops cost?",
        "module_moves": "What do moves of whole modules gain?",
        "granularity": "What does placing whole modules cost?",
        "neighbourhoods": "Can a network choose the neighbourhoods of a search?",
        "pipeline_policy": "Does a policy place pipelines better than search?",
        "adaptation": "What do few measurements gain?",
        "bounds": "How tight is the lower bound?",
        "bounds_memory": "What does memory add to the lower bound?",
    },
    "policies": {
        "ablation": "Which parts of the policy matter?",
        "pretraining": "How much do policies of equal trainings differ?",
        "finetuning": "Is the shipped policy a good start for one graph?",
        "speed": "How fast is training?",
        "decoding": "How fast is a decision of a policy?",
    },
    "costs": {
        "costs_of_ops": "How wrong are the costs of ops?",
        "costs_of_steps": "How wrong are simulated steps of one GPU?",
        "costs_of_links": "How wrong are predicted transfers?",
        "costs_of_layers": "How wrong are costs on boards without measurements?",
        "calibrated_costs": "What do calibrated costs change?",
        "measured_placements": "How wrong are simulated placements?",
        "recomputation": "Which solver saves the right activations for a budget?",
    },
    "inference": {
        "inference_splits": "What do splits of language models by bytes or by speed lose in tokens a second?",
    },
}
"""Questions by their names, which the functions that yield their tables bear, by the modules of these."""
COMPRESSED = {"neighbourhoods", "pipeline_policy", "adaptation", "costs_of_links", "recomputation"}
ROWS = {name: (f"{name}.csv.gz",) for name in COMPRESSED | {"inference_splits"}} | {
    "bounds": tuple(f"bounds_{level}.csv" for level in LEVELS),
    "bounds_memory": tuple(
        f"bounds_memory_{cluster}_{level}.csv" for cluster in ("gpu+cpu", "a100+v100") for level in LEVELS[:2]
    ),
    "costs_of_ops": ("costs_of_ops.csv", "costs_of_ops_ranks.csv"),
    "costs_of_steps": ("costs_of_steps.csv", "costs_of_steps_held_back.csv"),
}
"""Files of rows, where these are others than `NAME.csv`."""
for module, questions in SETTLED.items():
    for name, question in questions.items():
        made = ROWS.get(name, (f"{name}.csv",)), f"recorded.{module}:{name}_tables"
        EXPERIMENTS.register(name, Experiment(question, *made))

for name, arm, question in (
    ("orders", "rollout", "Which order should a policy use?"),
    ("orders_equal_features", "prefix", "Which order is best with equal features?"),
    ("orders_reinforcement", "improve", "Which order is best with reinforcement alone?"),
):
    made = ("orders.csv.gz", "orders_curves.csv.gz"), "recorded.orders:order_tables"
    EXPERIMENTS.register(name, Experiment(question, *made, fixed={"arm": arm}))
