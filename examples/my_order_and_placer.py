"""Adds an order and a placer of one's own, and compares them with others over a few graphs.

An order, a function of the graph, says in which sequence a policy visits the ops. A placer scores placements
in a `SearchState` until its budget ends. The decorators give them names, which `place` then knows;
`--plugin examples/my_order_and_placer.py` gives them to `train_agent.py` and `evaluate.py`.

It takes half a minute, and compiles for another one when it first runs. It prints the step times over one
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


@placer("shifted-cuts", uses_rng=True)
def shifted_cuts(search: SearchState, rng: np.random.Generator) -> None:
    """Cuts the units, in program order, into a segment for each device; shifts the best cuts at random."""
    n_units, n_devices = len(search.problem.graph.units), search.problem.n_devices
    best, best_score = np.linspace(0, n_units, n_devices + 1)[1:-1], (np.inf, np.inf)
    while search.left:
        cuts = best + rng.normal(scale=n_units / 20, size=(64, n_devices - 1))
        scores = search.score_units((np.arange(n_units) >= np.sort(cuts)[:, :, None]).sum(axis=1))
        for tried, score in zip(np.sort(cuts), scores.tolist(), strict=False):
            if tuple(score) < best_score:  # bytes over the memory limits, then seconds
                best, best_score = tried, tuple(score)


OWN = ("shifted-cuts", "policy largest-output-first")
RUNS = ("contiguous", "heft", OWN[0], OWN[1], "policy b-level", "policy topo", "refine")
"""Placers, the learned one with the order in which it visits the ops."""


def main() -> None:
    """Compares and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--families", nargs="+", default=["inception", "bert"])
    parser.add_argument("--graphs", type=int, default=3, help="graphs of each family")
    parser.add_argument("--budget", type=int, default=2_000, help="evaluations of each search")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"))
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    picture = flags.out / "my_order_and_placer.svg"

    graphs = [graph for family in flags.families for graph in load_family(family)[: flags.graphs]]
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
    axis.set_xlabel(f"step time over one device, geometric mean of {len(graphs)} graphs; own ones are orange")
    figure.savefig(picture)
    print(f"saved {picture}")


if __name__ == "__main__":
    main()
