"""Solves small problems exactly with PyJobShop: `python job_shop.py FOLDER SECONDS`, with pyjobshop 0.0.9.

It reads `FOLDER/problems.json`, which `optima.py` writes, and appends to `FOLDER/solved.jsonl`. The model is
the simulated step of schedule `program`: each device runs its ops in program order; a link carries copies in
the order of the ops that first need them, one at a time; a tensor goes to a device once. Memory is left out.
With schedule `fifo` and links without sharing, any order of ops is allowed, so that its optimum is a bound.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyjobshop import Model, Task

TICK_S = 1e-10
SLACK = 2_000
"""Ticks by which a step may be longer than the best known one; no longer one is looked for."""


def ticks(seconds: float) -> int:
    """Rounds seconds to whole ticks."""
    return round(seconds / TICK_S)


def model(problem: dict[str, Any]) -> tuple[Model, dict[tuple[int, int], Task]]:
    """Makes the model of a problem, and returns the optional task of each op on each device."""
    m, devices, n_ops = Model(), range(problem["n_devices"]), len(problem["unit_of"])
    is_source, seconds = problem["is_source"], problem["seconds"]
    machines = [m.add_machine() for _ in devices]
    any_device = m.add_renewable(problem["n_devices"])
    x: dict[tuple[int, int], Task] = {}
    whole: dict[int, Task] = {}  # the op, wherever it runs: its precedences hold in any case
    for op in range(n_ops):
        for device in devices:
            if is_source[op]:
                x[op, device] = m.add_task(optional=True, latest_start=0)
                m.add_mode(x[op, device], [], 0)
            else:
                x[op, device] = m.add_task(optional=True)
                m.add_mode(x[op, device], [machines[device]], ticks(seconds[op][device]))
        m.add_select_exactly_one([x[op, device] for device in devices])
        if not is_source[op]:
            whole[op] = m.add_task(latest_end=ticks(problem["best_s"]) + SLACK)
            for duration in sorted({ticks(each) for each in seconds[op]}):
                m.add_mode(whole[op], [any_device], duration, [1])
            for device in devices:
                m.add_start_at_start(whole[op], x[op, device])
                m.add_end_at_end(whole[op], x[op, device])
    units = defaultdict(list)
    for op, unit in enumerate(problem["unit_of"]):
        units[unit].append(op)
    for ops in units.values():
        for device in devices if len(ops) > 1 else ():
            m.add_select_all_or_none([x[op, device] for op in ops])
    if all(len({*row}) == 1 for row in seconds):  # devices are alike
        m.add_select_exactly_one([x[0, 0]])
    if problem["schedule"] == "program":
        computing = list(whole)
        for at, op in enumerate(computing):
            for later in computing[at + 1 :]:
                for device in devices:
                    m.add_end_before_start(x[op, device], x[later, device])
    add_copies(m, problem, x, whole)
    return m, x


def add_copies(
    m: Model, problem: dict[str, Any], x: dict[tuple[int, int], Task], whole: dict[int, Task]
) -> None:
    """Adds a copy for each tensor, pair of devices and op that may be the first to need it there."""
    devices = range(problem["n_devices"])
    pairs = [(a, b) for a in devices for b in devices if a != b]
    links = {link: m.add_machine() for link in {problem["link"][a][b] for a, b in pairs} if link >= 0}
    carried = defaultdict(list)
    for tensor, producer in enumerate(problem["producer"]):
        readers = sorted(problem["consumers"][tensor])
        for reader in readers:
            if producer in whole:
                m.add_end_before_start(whole[producer], whole[reader])
            for device in devices:
                m.add_end_before_start(x[producer, device], x[reader, device])
        apart = [op for op in readers if problem["unit_of"][op] != problem["unit_of"][producer]]
        for source, target in pairs:
            link, copies = problem["link"][source][target], []
            copy_s = problem["size"][tensor] / problem["bandwidth"][source][target]
            latency = ticks(problem["latency"][source][target])
            for reader in apart:
                copy = m.add_task(optional=True)
                m.add_mode(copy, [links[link]] if link >= 0 else [], ticks(copy_s))
                m.add_end_before_start(x[producer, source], copy)
                m.add_select_at_least_one([x[producer, source]], copy)
                m.add_select_at_least_one([x[reader, target]], copy)
                copies.append(copy)
                elsewhere = [x[producer, device] for device in devices if device != source]
                m.add_select_at_least_one([*elsewhere, *copies], x[reader, target])
                for each in copies:
                    m.add_end_before_start(each, x[reader, target], latency)
                if link >= 0:
                    carried[link].append(((reader, problem["inputs"][reader].index(tensor)), copy))
            for copy in copies if len(copies) > 1 else ():
                m.add_select_exactly_one(copies, copy)
    for copies in carried.values():
        copies.sort(key=lambda pair: pair[0])
        for at, (key, copy) in enumerate(copies):
            for other_key, other in copies[at + 1 :]:
                if key != other_key:
                    m.add_end_before_start(copy, other)


def main(folder: Path, seconds: float) -> None:
    """Solves all problems on one core, small ones first."""
    problems = json.loads((folder / "problems.json").read_text())
    with (folder / "solved.jsonl").open("a") as file:
        for problem in sorted(problems, key=lambda problem: len(problem["unit_of"])):
            began_s = time.process_time()
            m, x = model(problem)
            found = m.solve(time_limit=seconds, display=False, num_workers=1)
            at = {id(task): index for index, task in enumerate(m.tasks)}
            row = {
                **{key: problem[key] for key in ("graph", "cluster")},
                "found_s": found.objective * TICK_S,
                "bound_s": found.lower_bound * TICK_S,
                "status": found.status.value,
                "cpu_s": time.process_time() - began_s,
                "device_of": [
                    next(d for d in range(problem["n_devices"]) if found.best.tasks[at[id(x[op, d])]].present)
                    for op in (range(len(problem["unit_of"])) if found.best.tasks else ())
                ],
            }
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
