"""Writes instances for `saga_schedules.py`, and scores its schedules: `instances FOLDER`, `rows FOLDER`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from agent.instances.instance import Instance, find_instances, load_instance
from agent.lab.bench import REFERENCE_S, calibrated_loop_s
from agent.lab.pivot import Row, read_table, write_rows
from agent.lab.questions import RESULTS
from envs.placements.placement import Placement
from graphs.system.array_types import IntArray

SAME = 2e-7
"""Share by which a schedule may differ, as times are rounded to ticks."""
LIMIT_S = 60.0
FIRST = ("heft", "cpop", "minmin", "maxmin")


def exported(instance: Instance) -> dict[str, Any]:
    """Returns the ops of an instance, without inputs and parameters, and its links."""
    graph, problem = instance.graph, instance.problem
    ops = np.flatnonzero(~graph.is_source).tolist()
    others = ~np.eye(problem.n_devices, dtype=bool)
    bandwidth, latency = problem.arrays.bandwidth[others], problem.arrays.latency[others]
    assert np.ptp(bandwidth) == np.ptp(latency) == 0.0, "links differ"
    edges: dict[tuple[int, int], float] = defaultdict(float)
    for tensor, producer in enumerate(graph.tensor_producer.tolist()):
        if not graph.is_source[producer]:
            for reader in graph.consumers.row(tensor).tolist():
                edges[producer, reader] += float(graph.tensor_bytes[tensor])
    return {
        "name": instance.name,
        "ops": ops,
        "seconds": problem.op_seconds[ops].tolist(),
        "edges": [[*pair, size] for pair, size in edges.items()],
        "n_devices": problem.n_devices,
        "bytes_per_s": float(bandwidth[0]),
        "latency_s": float(latency[0]),
    }


def replayed_s(instance: dict[str, Any], order: list[list[int]]) -> float:
    """Times a schedule in its order by a plain list schedule, without contention for links."""
    seconds = dict(zip(instance["ops"], instance["seconds"], strict=True))
    device_of = {op: device for device, ops in enumerate(order) for op in ops}
    inputs = defaultdict(list)
    for producer, reader, size in instance["edges"]:
        inputs[reader].append((producer, size / instance["bytes_per_s"] + instance["latency_s"]))
    finish_s, free_s, at = {}, [0.0] * len(order), [0] * len(order)
    while len(finish_s) < len(seconds):
        before = len(finish_s)
        for device, ops in enumerate(order):
            while at[device] < len(ops) and all(other in finish_s for other, _ in inputs[ops[at[device]]]):
                op = ops[at[device]]
                arrivals = (
                    finish_s[other] + (0.0 if device_of[other] == device else copy_s)
                    for other, copy_s in inputs[op]
                )
                free_s[device] = max(free_s[device], *arrivals, 0.0) + seconds[op][device]
                finish_s[op] = free_s[device]
                at[device] += 1
        assert len(finish_s) > before, "the order of the devices is not topological"
    return max(finish_s.values())


def placed(instance: Instance, order: list[list[int]]) -> IntArray:
    """Places each unit where its longest op is, and what computes nothing with its reader."""
    graph, seconds = instance.graph, instance.problem.op_seconds.mean(axis=1)
    chosen = np.full(graph.n_ops, -1)
    for device, ops in enumerate(order):
        chosen[ops] = device
    device_of = np.full(graph.n_ops, -1, dtype=np.int64)
    for unit in range(len(graph.units)):
        ops = graph.units.row(unit)
        if len(own := ops[chosen[ops] >= 0]):
            device_of[ops] = chosen[own[seconds[own].argmax()]]
    for op in np.flatnonzero(device_of < 0):
        readers = [c for t in graph.outputs.row(op) for c in graph.consumers.row(t) if device_of[c] >= 0]
        device_of[op] = device_of[min(readers)] if readers else 0
    return device_of


def scored(folder: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns the step and the normalised seconds by instance and scheduler; infinite where out of memory."""
    instances = {row["name"]: row for row in json.loads((folder / "instances.json").read_text())}
    scale = calibrated_loop_s() / REFERENCE_S
    found: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    worst = 0.0
    for line in (folder / "schedules.jsonl").read_text().splitlines():
        row = json.loads(line)
        exported_row = instances[row["name"]]
        if row["error"] or sum(map(len, row["order"])) < len(exported_row["ops"]):
            print(row["name"], row["scheduler"], row["error"] or "loses tasks")
            continue
        worst = max(worst, replayed_s(exported_row, row["order"]) / row["makespan_s"] - 1)
        instance = load_instance(row["name"])
        step = instance.objective.simulate(Placement(placed(instance, row["order"])))
        found[row["name"]][row["scheduler"]] = (step.total_s if step.fits else np.inf, row["cpu_s"] / scale)
    assert worst < SAME
    return found


def rows(folder: Path) -> None:
    """Puts the rows of the schedulers into those of the benchmark, before what others report."""
    path = RESULTS / "benchmark.csv.gz"
    known = [row for row in read_table(path) if not row["placer"].startswith("saga-")]
    first = {row["instance"]: row for row in reversed(known)}
    new: list[Row] = []
    for name, steps in scored(folder).items():
        best = min(step_s for step_s, _ in steps.values()), sum(cpu_s for _, cpu_s in steps.values())
        for placer, (step_s, cpu_s) in {**{key: steps[key] for key in FIRST}, "best": best}.items():
            new.append(
                {
                    "instance": name,
                    "placer": f"saga-{placer}",
                    "seconds": LIMIT_S,
                    "step_s": step_s,
                    "evaluations": len(steps) if placer == "best" else 1,
                    "cpu_s": cpu_s,
                    **{key: first[name][key] for key in ("bound_s", "best_s")},
                }
            )
    ours, reported = ([row for row in known if bool(row["seconds"]) == run] for run in (True, False))
    order = {name: at for at, name in enumerate(first)}
    write_rows(path, [*ours, *sorted(new, key=lambda row: order[row["instance"]]), *reported])


def main(what: str, folder: Path) -> None:
    """Writes instances, or rows."""
    if what == "instances":
        patterns = ("doppler:*", "tarnawski:*", "placeto:*", "sealed:*")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "instances.json").write_text(
            json.dumps([exported(each) for each in find_instances(patterns)])
        )
    else:
        rows(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
