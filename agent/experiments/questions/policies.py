"""Declares what is asked about policies and their training."""

from __future__ import annotations

from agent.experiments.experiment import EXPERIMENTS, Experiment

ORDERS = ("topo", "b-level", "reversed-topo", "dfs-preorder", "dfs-postorder", "bfs", "alpha", "random")
"""Those of Wang et al. 2022 but for the lexicographic one, and b-level."""
PLACETO = ("cifar10", "ptb", "nmt")
FAMILIES = (*PLACETO, "gpt", "vit", "moe")


def declare(name: str, question: str, arm: str, families: tuple[str, ...]) -> None:
    """Registers an experiment on one arm of the study of orders."""
    experiment = Experiment(
        question,
        rows=("orders.csv.gz", "orders_curves.csv.gz"),
        run="orders.answer:order_rows",
        tables="orders.report:order_tables",
        settings={"families": families, "orders": ORDERS, "seeds": 3, "minutes": 0.0, "jobs": 2},
        quick={"families": ("cifar10",), "orders": ("topo", "bfs"), "seeds": 1, "minutes": 0.1},
        fixed={"arm": arm},
    )
    EXPERIMENTS.register(name, experiment)


declare("orders", "Which order should a policy use?", "rollout", FAMILIES)
declare("orders_equal_features", "Which order is best with equal features?", "prefix", FAMILIES)
declare("orders_reinforcement", "Which order is best with reinforcement alone?", "improve", PLACETO)
EXPERIMENTS.register(
    "leave_one_out",
    Experiment(
        "How good is a policy on families that it was not trained on?",
        rows=("leave_one_out.csv",),
        run="leave_one_out:left_out_rows",
        tables="leave_one_out:left_out_tables",
        settings={"left_out": (), "trials": (), "every": 1, "seeds": 1, "minutes": 20.0, "jobs": 2},
        quick={"left_out": ("cifar10",), "trials": ("1-second",), "every": 12, "minutes": 0.1},
    ),
)
for name, question in {
    "ablation": "Which parts of the policy matter?",
    "finetuning": "Is the shipped policy a good start for one graph?",
    "speed": "How fast is training?",
    "decoding": "How fast is a decision of a policy?",
}.items():
    EXPERIMENTS.register(name, Experiment(question, rows=(f"{name}.csv",), tables=f"recorded:{name}_tables"))
