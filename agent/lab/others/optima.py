"""Checks the optima of the page `optimality`: `problems FOLDER` before `job_shop.py`, `rows FOLDER` after it.

`FOLDER/graphs.jsonl` has graphs of the page, written at 18dde8b: all that are closed, and those of 32 groups.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agent.lab.pivot import Row, read_table, write_rows
from agent.lab.questions import RESULTS
from agent.lab.trials import sealed_graphs
from agent.placers.base import PLACERS, Budget
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_many, step_times_s
from graphs.granularity import with_granularity
from graphs.io.graph_files import read_graphs
from graphs.system.array_types import IntArray

CLUSTERS = ("4xv100:2", "4xa100-pcie:2")
MOST_PLACEMENTS, MOST_OPS, CHUNK = 1 << 21, 120, 1 << 14
SEEDS, EVALUATIONS = 3, 30_000
SAME = 1e-6


def problems_of(folder: Path) -> Iterator[tuple[Problem, float | None]]:
    """Yields the closed problems with their recorded optima, then those of 32 groups that were not closed."""
    graphs = {graph.name: graph for graph in read_graphs(folder / "graphs.jsonl")}
    closed = {
        (row["graph"], row["cluster"]): row["optimum_s"] for row in read_table(RESULTS / "optimality.csv")
    }
    for (name, cluster), optimum_s in closed.items():
        yield Problem(graphs[name], get_cluster(cluster)), optimum_s
    for name, graph in graphs.items():
        for cluster in CLUSTERS if name.endswith("-in-32") else ():
            if (name, cluster) not in closed:
                yield Problem(graph, get_cluster(cluster)), None


def placements(problem: Problem) -> Iterator[IntArray]:
    """Yields all placements in chunks, (n, n_ops); the first unit is on the first device: all are alike."""
    n, n_units = problem.n_devices, len(problem.graph.units)
    codes = np.arange(n ** (n_units - 1))
    for chunk in np.array_split(codes, len(codes) // CHUNK + 1):
        digits = [(chunk // n**at) % n for at in range(n_units - 1)]
        devices = np.stack([np.zeros_like(chunk), *digits], axis=1)
        yield np.ascontiguousarray(devices[:, problem.graph.unit_of])


def optimum_s(problem: Problem, below_s: float) -> float | None:
    """Tries all placements; memory is looked at for steps below a limit. None where they are too many."""
    if problem.n_devices ** len(problem.graph.units) > MOST_PLACEMENTS:
        return None
    least = np.inf
    for devices in placements(problem):
        steps = step_times_s(problem, devices)
        short = np.flatnonzero(steps <= below_s)
        if len(short) and not problem.always_fits:
            _, peak = simulate_many(problem, np.ascontiguousarray(devices[short]))
            steps[short[(peak > problem.cluster.memory_bytes).any(axis=1)]] = np.inf
        least = min(least, float(steps.min()))
    return least


def exported(problem: Problem, best_s: float) -> dict[str, Any]:
    """Returns the arrays of a problem for the solver."""
    graph, arrays = problem.graph, problem.arrays
    return {
        "graph": graph.name,
        "cluster": problem.cluster.name,
        "schedule": problem.cluster.schedule,
        "n_devices": problem.n_devices,
        "best_s": best_s,
        "unit_of": graph.unit_of.tolist(),
        "consumers": [graph.consumers.row(tensor).tolist() for tensor in range(graph.n_tensors)],
        "inputs": [graph.inputs.row(op).tolist() for op in range(graph.n_ops)],
        **{key: getattr(arrays, key).tolist() for key in ("is_source", "producer", "size", "link")},
        **{key: getattr(arrays, key).tolist() for key in ("bandwidth", "latency")},
        "seconds": arrays.op_seconds.tolist(),
    }


def searched_s(problem: Problem) -> float:
    """Returns the shortest step that `refine` finds."""
    found = (
        PLACERS["refine"].place(problem, Budget(EVALUATIONS), np.random.default_rng(seed))
        for seed in range(SEEDS)
    )
    return min(result.step_time.total_s for result in found if result.feasible)


def rows(folder: Path) -> Iterator[Row]:
    """Yields the recorded optima, those of today with units of the page and of today, and the solver's."""
    whole = {graph.name: graph for graph in sealed_graphs(first_seed=1000)}
    solved = {}
    for line in (folder / "solved.jsonl").read_text().splitlines():
        row = json.loads(line)
        solved[row["graph"], row["cluster"]] = row
    best = {
        (row["graph"], row["cluster"]): row["best_s"]
        for row in json.loads((folder / "problems.json").read_text())
    }
    for problem, recorded_s in problems_of(folder):
        key = problem.graph.name, problem.cluster.name
        again_s = today_s = None
        if recorded_s is not None:
            name, _, level = problem.graph.name.rpartition("-by-")
            today = Problem(with_granularity(whole[name], level), problem.cluster) if name else problem
            again_s = optimum_s(problem, recorded_s * (1 + SAME))
            today_s = optimum_s(today, recorded_s * (1 + SAME)) if name else again_s
        found = solved.get(key)
        step_s = None
        if found and found["device_of"]:
            devices = np.array([found["device_of"]], dtype=np.int64)
            steps, peak = simulate_many(problem, devices)
            step_s = float(steps[0]) if (peak[0] <= problem.cluster.memory_bytes).all() else np.inf
            assert abs(found["found_s"] / steps[0] - 1) < SAME, "the models differ"
        yield {
            "graph": key[0],
            "cluster": key[1],
            "recorded_s": recorded_s,
            "again_s": again_s,
            "today_s": today_s,
            "searched_s": None if recorded_s else best.get(key),
            "solver_s": step_s,
            "solver_bound_s": found and found["bound_s"],
            "status": found and found["status"],
            "solver_cpu_s": found and round(found["cpu_s"], 3),
        }


def main(what: str, folder: Path) -> None:
    """Writes problems, or rows."""
    if what == "problems":
        found = [
            exported(problem, recorded_s or searched_s(problem))
            for problem, recorded_s in problems_of(folder)
            if problem.graph.n_ops <= MOST_OPS
        ]
        (folder / "problems.json").write_text(json.dumps(found))
    else:
        write_rows(RESULTS / "optimality_solver.csv.gz", [*rows(folder)])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
