"""Draws `docs/budgets.svg`: steps by placer and budget of seconds, from the rows of the page `budgets`.

Run `python docs/draw_budgets.py` in the checkout.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from agent.evaluation.comparison.ratios import geometric_mean
from agent.lab.pivot import Row, read_table
from agent.lab.questions import RESULTS
from agent.lab.trials import LARGE_OPS
from envs.figures import OKABE_ITO

FILE = Path(__file__).with_name("budgets.svg")
PLACERS = ("auto", "policy-refine", "rollout-refine", "refine", "annealing", "local-search")
MARKERS = "os^vDx"


def steps_of(rows: list[Row], placer: str) -> tuple[list[float], list[float]]:
    """Returns budgets in seconds, and geometric means of the steps over one device's."""
    chosen = [row for row in rows if row["placer"] == placer]
    budgets = sorted({row["seconds"] for row in chosen})
    by_budget = [[row for row in chosen if row["seconds"] == seconds] for seconds in budgets]
    return budgets, [geometric_mean([row["step_s"] / row["single_s"] for row in cell]) for cell in by_budget]


def main() -> None:
    """Draws a panel for each size of graphs and kind of links."""
    rows = [row for row in read_table(RESULTS / "budgets.csv.gz") if row["granularity"] == "op"]
    mpl.rcParams |= {"svg.hashsalt": "budgets", "svg.fonttype": "none", "font.size": 9}
    figure, axes = plt.subplots(1, 4, figsize=(11, 3.4), layout="constrained")
    panels = [(large, cluster) for large in (False, True) for cluster in ("4xv100", "4xa100-pcie")]
    for axis, (is_large, cluster) in zip(axes, panels, strict=True):
        panel = [row for row in rows if row["cluster"] == cluster and is_large == (row["n_ops"] >= LARGE_OPS)]
        for placer, marker, colour in zip(PLACERS, MARKERS, OKABE_ITO, strict=False):
            width = 2.2 if placer == "auto" else 1.1
            axis.plot(
                *steps_of(panel, placer), marker=marker, color=colour, label=placer, linewidth=width, ms=4
            )
        axis.set(xscale="log", xlabel="processor seconds")
        budgets = sorted({row["seconds"] for row in panel})
        axis.set_xticks(budgets, [f"{seconds:g}" for seconds in budgets])
        axis.minorticks_off()
        n_graphs = len({row["graph"] for row in panel})
        size = f"{n_graphs} graphs of 3,000 ops and more" if is_large else f"{n_graphs} smaller graphs"
        axis.set_title(f"{size}\n{cluster}", fontsize=9)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("step time over one device's")
    axes[0].legend(fontsize=8)
    figure.savefig(FILE, metadata={"Date": None})
    print(f"saved {FILE}")


if __name__ == "__main__":
    main()
