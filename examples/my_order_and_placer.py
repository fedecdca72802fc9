"""Adds an order and a placer of one's own, and compares them with others over a few graphs.

An order, a function of the graph, says in which sequence a policy visits the ops. A placer scores placements
in a `SearchState` until its budget ends. The decorators give them names, which `place` then knows;
`--plugin examples/my_order_and_placer.py` gives them to `train_agent.py` and `evaluate.py`.

It takes five seconds, and compiles for a minute when it first runs. It prints the step times over one
device, geometric means over the graphs, and saves `runs/examples/my_order_and_placer.svg`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from agent import place
from agent.placers.base import SearchState, placer
from graphs.dataset import load_family
from graphs.op_graph import OpGraph
from graphs.orders import VisitOrder, order


@order
def largest_output_first(graph: OpGraph) -> VisitOrder:
    """Most bytes of output first; ties in program order."""
    output_bytes = np.bincount(graph.tensor_producer, graph.tensor_bytes, graph.n_ops)
    compute = np.flatnonzero(graph.is_compute)
    return compute[np.argsort(-output_bytes[compute], kind="stable")]


@placer("move-segments", uses_rng=True)
def move_segments(search: SearchState, rng: np.random.Generator) -> None:
    """Moves random segments of the units, in program order, to random devices where that helps."""
    n_units, n_devices = len(search.problem.graph.units), search.problem.n_devices
    best, best_score = np.zeros(n_units, dtype=np.int64), [np.inf, np.inf]
    while search.left:
        tried = np.tile(best, (16, 1))
        for row, first in zip(tried, rng.integers(n_units, size=len(tried)), strict=True):
            row[first : first + rng.geometric(10 / n_units)] = rng.integers(n_devices)
        for row, score in zip(tried, search.score_units(tried).tolist(), strict=False):
            if score < best_score:  # bytes over the memory limits, then seconds
                best, best_score = row, score


OWN = ("move-segments", "policy largest-output-first")
RUNS = ("contiguous", "heft", *OWN, "policy b-level", "policy topo", "refine")
"""Placers, the learned one with the order in which it visits the ops."""


def main() -> None:
    """Compares and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=3, help="graphs of each family")
    parser.add_argument("--budget", type=int, default=2_000, help="evaluations of each search")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"))
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    picture = flags.out / "my_order_and_placer.svg"
    graphs = [graph for family in ("inception", "bert") for graph in load_family(family)[: flags.graphs]]
    means = {}
    for run in RUNS:
        name, _, visit = run.partition(" ")
        plans = [place(graph, placer=name, order=visit or "topo", budget=flags.budget) for graph in graphs]
        means[run] = float(np.exp(np.mean([np.log(plan.ratio_to_single or np.inf) for plan in plans])))
        print(f"{run:<30} {means[run]:.3f} of one device")

    figure, axis = plt.subplots(figsize=(8, 3.5), layout="constrained")
    colours = ["tab:orange" if run in OWN else "tab:blue" for run in RUNS]
    axis.bar_label(axis.barh(RUNS, list(means.values()), color=colours), fmt="%.3f", padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.1)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(f"step time over one device, geometric mean of {len(graphs)} graphs; own ones are orange")
    figure.savefig(picture)
    print(f"saved {picture}")


if __name__ == "__main__":
    main()
