"""Prints the tables of the page `encoder_and_imitation` from its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import stats

from agent.lab.pivot import Rows, axis, read_table

FILE = Path(__file__).parent / "results" / "encoder_and_imitation.csv.gz"
OUT_OF_MEMORY = 2.0
"""Step over one device's that a placement out of memory counts as, as in training."""
KINDS = ("held out", "unseen")


def interval(values: list[float]) -> str:
    """Formats the geometric mean of the seeds with a 95 % interval, that of Student for the logarithms."""
    logs = np.log(values)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    low, mean, high = np.exp(logs.mean() + np.array([-half, 0.0, half]))
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def cell(rows: Rows, kind: str, column: str) -> str:
    """Formats a column over the seeds of an arm."""
    by_seed = [[row for row in rows if row["seed"] == seed] for seed in axis(row["seed"] for row in rows)]
    ratios = [
        [min(row[column] / row["single_s"], OUT_OF_MEMORY) for row in some if row["kind"] == kind]
        for some in by_seed
    ]
    return interval([float(np.exp(np.mean(np.log(values)))) for values in ratios])


def main() -> None:
    """Prints a table for each recipe and length."""
    rows = read_table(FILE)
    for recipe, minutes in axis((row["recipe"], row["minutes"]) for row in rows):
        chosen = [row for row in rows if (row["recipe"], row["minutes"]) == (recipe, minutes)]
        heads = [f"{kind}, {what}" for what in ("one decode", "best of 17") for kind in KINDS]
        print(f"\n`{recipe}.json`, {minutes:g} minutes:\n")
        print(f"| arm | {' | '.join(heads)} | decisions, millions |")
        print("| --- " * (len(heads) + 2) + "|")
        for arm in axis(row["arm"] for row in chosen):
            own = [row for row in chosen if row["arm"] == arm]
            cells = [cell(own, kind, column) for column in ("greedy_s", "best_s") for kind in KINDS]
            decisions = np.mean(axis(row["decisions"] for row in own)) / 1e6
            print(f"| {arm} | {' | '.join(cells)} | {decisions:.1f} |")


if __name__ == "__main__":
    main()
