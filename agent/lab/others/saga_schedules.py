"""Runs SAGA's schedulers on instances: `python saga_schedules.py FOLDER`, with anrg-saga 2.0.2.

It reads `FOLDER/instances.json`, which `schedulers.py` writes, and appends to `FOLDER/schedules.jsonl`, which
that scores. Set PYTHONHASHSEED=0, as SAGA breaks ties by the order of sets.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

import saga.schedulers
from saga import Network, TaskGraph

TICK_S = 1e-10
"""Times are whole numbers of ticks, so that sums are exact: SAGA's insertion fails on rounded ones."""
FIRST = ("heft", "cpop", "minmin", "maxmin")
FIRST_OPS, FIRST_S = 5_000, 60
OTHER_OPS, OTHER_S = 480, 10
"""Most ops and most processor seconds of the first and of the other schedulers."""
LATE = 2
"""Times that a scheduler may be late before it is left out."""
UNSUITED = ("BruteForceScheduler", "HybridScheduler", "SMTScheduler")
SCHEDULERS = {
    name.removesuffix("Scheduler").lower(): getattr(saga.schedulers, name)
    for name in saga.schedulers.__all__
    if name not in UNSUITED
}


class Late(BaseException):
    """A scheduler that took too long."""


class Speed(float):
    """The speed of a device that knows which one it is: 1."""

    device = 0


class Cost(float):
    """The mean ticks of an op, which on a device are those of this device: SAGA divides costs by speeds."""

    ticks: tuple[float, ...] = ()

    def __truediv__(self, other: float) -> float:
        return self.ticks[other.device] if isinstance(other, Speed) else float(self) / other


def model(instance: dict[str, Any]) -> tuple[Network, TaskGraph]:
    """Makes SAGA's network and task graph of an instance."""

    def ticks(seconds: float) -> float:
        return float(round(seconds / TICK_S))

    names = [f"d{device}" for device in range(instance["n_devices"])]
    network = Network.create(
        [(name, 1.0) for name in names], [(a, b, 1.0) for a in names for b in names if a < b]
    )
    for node in network.nodes:
        speed = Speed(1.0)
        speed.device = names.index(node.name)
        node.speed = speed
    copies = (
        (str(a), str(b), ticks(size / instance["bytes_per_s"] + instance["latency_s"]))
        for a, b, size in instance["edges"]
    )
    graph = TaskGraph.create([(str(op), 1.0) for op in instance["ops"]], copies)
    times = {
        str(op): [ticks(s) for s in row] for op, row in zip(instance["ops"], instance["seconds"], strict=True)
    }
    for task in graph.tasks:
        if task.name in times:
            task.cost = Cost(sum(times[task.name]) / len(names))
            task.cost.ticks = times[task.name]
    return network, graph


def schedule(instance: dict[str, Any], name: str, seconds: float) -> dict[str, Any]:
    """Runs one scheduler; `order` lists the ops of each device in the order of their starts."""
    network, graph = model(instance)
    began_s, error, found = time.process_time(), "", None
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        found = SCHEDULERS[name]().schedule(network, graph)
    except Late:
        error = "late"
    except Exception as raised:
        error = repr(raised)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    row = {
        "name": instance["name"],
        "scheduler": name,
        "cpu_s": time.process_time() - began_s,
        "error": error,
    }
    if found is None:
        return row
    order = []
    for device in range(instance["n_devices"]):
        tasks = [task for task in found.mapping[f"d{device}"] if not task.name.startswith("_")]
        tasks.sort(key=lambda task: (task.start, task.end, int(task.name)))
        order.append([int(task.name) for task in tasks])
    return row | {"makespan_s": found.makespan * TICK_S, "order": order}


def main(folder: Path) -> None:
    """Runs all schedulers, small instances first."""

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGPROF, late)
    logging.disable(logging.WARNING)
    instances = json.loads((folder / "instances.json").read_text())
    instances.sort(key=lambda instance: len(instance["ops"]) * instance["n_devices"])
    with (folder / "schedules.jsonl").open("a") as file:
        for name in (*(name for name in SCHEDULERS if name not in FIRST), *FIRST):
            most, seconds = (FIRST_OPS, FIRST_S) if name in FIRST else (OTHER_OPS, OTHER_S)
            n_late = 0
            for instance in instances:
                if len(instance["ops"]) <= most and n_late < LATE:
                    row = schedule(instance, name, seconds)
                    n_late += row["error"] == "late"
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
