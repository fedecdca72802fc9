"""Declares questions on policies, whose rows other commands make."""

import numpy as np

from agent.lab.experiment import EXPERIMENTS, Experiment
from agent.lab.pivot import Across, Pivot, Rows, Statistic, count, grouped, mean, only, value

DECODING = Pivot(
    {"graph": "graph", "walks": "walks", "features": "features"},
    [
        ("us a decision", value("us", ".1f")),
        ("scored by torch, us", value("torch_us", ".1f")),
        ("ratio", lambda rows: f"{rows[0]['torch_us'] / rows[0]['us']:.1f}"),
    ],
)
EXPERIMENTS.register(
    "decoding", Experiment("How fast is a decision of a policy?", [DECODING], ["decoding.csv"])
)

GRANULARITY = Pivot(
    {"family": "family", "graphs": "graphs"},
    [
        (f"{placer}, {level}", only(value("ratio_to_single", ".3f"), granularity=level, placer=placer))
        for level in ("op", "module")
        for placer in ("heft", "annealing", "local-search", "policy", "policy-refine")
    ],
)
EXPERIMENTS.register(
    "granularity",
    Experiment("What does placing whole modules cost?", [GRANULARITY], ["granularity.csv"]),
)


def with_spread(rows: Rows) -> str:
    """Formats a ratio with its interval and, if it is known, the spread over trainings."""
    (row,) = rows
    spread = f"; ± {row['spread_over_trainings']:.3f}" if row["spread_over_trainings"] is not None else ""
    return f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f}{spread})"


DECODES = {"policy": "one decode", "policy-sample": "17 decodes"}
ABLATION = Pivot(
    {"variant": "variant"},
    [Across(lambda row: f"{row['families']}, {DECODES[row['placer']]}", with_spread)],
    where=lambda row: bool(row["variant"] != "full-model"),
)
EXPERIMENTS.register(
    "ablation", Experiment("Which parts of the policy matter?", [ABLATION], ["ablation.csv"])
)


def logs_of_trainings(rows: Rows) -> list[float]:
    """Returns the mean logarithm of the step over annealing of each of the equal trainings."""
    trained = grouped((row for row in rows if row["policy"].startswith("seed")), lambda row: row["policy"])
    return [float(np.mean([np.log(row["over_annealing"]) for row in own])) for own in trained.values()]


def pretrained(*index: str) -> Pivot:
    """Makes a table of one decode of each policy over annealing."""
    cells: list[tuple[str, Statistic] | Across] = [
        ("graphs", only(count, policy="shipped")),
        Across("policy", mean("over_annealing")),
        ("mean of trainings", lambda rows: f"{np.exp(np.mean(logs_of_trainings(rows))):.3f}"),
        ("spread", lambda rows: f"{np.std(logs_of_trainings(rows), ddof=1):.3f}"),
    ]
    return Pivot({name: name for name in index}, cells)


EXPERIMENTS.register(
    "pretraining",
    Experiment(
        "How much do policies of equal trainings differ?",
        [pretrained("cluster", "size"), pretrained("family")],
        ["pretraining.csv"],
    ),
)
