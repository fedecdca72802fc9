"""Searches for instances on which `auto` is behind another placer: `python -m agent.lab.adversary OUT.jsonl`.

Problem instance search by simulated annealing, after Coleman and Krishnamachari (arXiv 2403.07120).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from agent.instances.instance import load_instance
from agent.lab.pivot import Row, Rows, write_rows
from agent.placers.base import Budget, PlacementResult
from agent.placing.trial_runner import TrialRunner, make_placer, open_policy
from agent.policy.serialization import StoredPolicy
from envs.cluster.cluster import Cluster, Device
from envs.cluster.files import write_cluster
from envs.objective import Objective
from envs.placements.files import placement_to_json
from envs.problem import Problem
from graphs.io.graph_files import write_graphs
from graphs.op_graph import OpGraph, build_graph
from graphs.system.json_files import read_json, write_json_atomic
from graphs.system.registry import load_plugins
from graphs.system.running_time import running_cpu_s

PLACER, OLD = "auto", "auto-old"
OTHERS = ("refine", "annealing", "local-search", "policy-refine", "rollout-refine")
QUICK = ("heft", "m-etf", "metis", "cross-entropy")
SHAPES = ("chain", "fork-join", "layered", "in-tree", "out-tree", "grid")
BUDGETS = (0.03, 0.1, 0.3)
FLOPS_PER_S, LINK_BYTES_PER_S, AMPLE_BYTES = 1e12, 1e10, 1e15
OP_S, RESIDENT_BYTES = 1e-3, 1e7
MAX_GAP, MOST_LATE = 4.0, 1.5
"""A placer that takes more than so many times the budget is not ahead."""
FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.05, 0.005
CONFIRMED_FROM, CONFIRMING_SEEDS = 1.05, (1, 2, 3)


@dataclass(frozen=True)
class Parameters:
    """What an instance is drawn from.

    Attributes:
        width: branches of a fork-join, ops of a layer, columns of a grid, children of a tree.
        ratio: seconds of a mean transfer over those of a mean op.
        spread: standard deviation of the logarithm of op times and sizes of tensors.
        link_spread: links between two halves of the devices are so many times slower.
        device_spread: the last device is so many times slower than the first.
        tightness: memory of all devices over resident bytes; 0 for ample memory.
    """

    shape: str
    n_ops: int
    width: int
    ratio: float
    spread: float
    link_spread: float
    n_devices: int
    device_spread: float
    tightness: float
    schedule: str
    sharing: str
    seconds: float
    seed: int


def draw(shape: str, rng: np.random.Generator) -> Parameters:
    """Draws parameters."""
    return Parameters(shape, **{name: drawn(rng) for name, drawn in DRAWS.items()})  # type: ignore[arg-type]


DRAWS: dict[str, Callable[[np.random.Generator], object]] = {
    "n_ops": lambda rng: int(np.exp(rng.uniform(np.log(20), np.log(1000)))),
    "width": lambda rng: int(np.exp(rng.uniform(np.log(2), np.log(32)))),
    "ratio": lambda rng: float(np.exp(rng.uniform(np.log(0.01), np.log(100)))),
    "spread": lambda rng: float(rng.choice([0.0, 0.3, 1.0, 2.0])),
    "link_spread": lambda rng: float(rng.choice([1.0, 1.0, 3.0, 10.0, 30.0])),
    "n_devices": lambda rng: int(rng.integers(2, 9)),
    "device_spread": lambda rng: float(rng.choice([1.0, 1.0, 2.0, 4.0, 8.0])),
    "tightness": lambda rng: float(rng.choice([0.0, 0.0, 1.3, 1.6, 2.5])),
    "schedule": lambda rng: str(rng.choice(["program", "fifo"])),
    "sharing": lambda rng: str(rng.choice(["egress", "pair", "none"])),
    "seconds": lambda rng: float(rng.choice(BUDGETS, p=(0.4, 0.4, 0.2))),
    "seed": lambda rng: int(rng.integers(1_000_000)),
}


def moved(at: Parameters, rng: np.random.Generator) -> Parameters:
    """Changes one or two parameters: an amount by a factor, or draws it anew."""
    names = rng.choice(list(DRAWS), size=int(rng.integers(1, 3)), replace=False)
    changes: dict[str, object] = {}
    for name in map(str, names):
        if name in ("n_ops", "width", "ratio") and rng.random() < 0.7:
            least, most = {"n_ops": (20, 1000), "width": (2, 32), "ratio": (0.01, 100.0)}[name]
            scaled = float(np.clip(getattr(at, name) * np.exp(rng.normal(0.0, 0.6)), least, most))
            changes[name] = scaled if name == "ratio" else round(scaled)
        else:
            changes[name] = DRAWS[name](rng)
    return replace(at, **changes)  # type: ignore[arg-type]


def readers_of(shape: str, n_ops: int, width: int, rng: np.random.Generator) -> list[list[int]]:
    """Lists the ops that read each op's output."""
    readers: list[list[int]] = [[] for _ in range(n_ops)]
    for op in range(1, n_ops):
        if shape == "chain":
            read = [op - 1]
        elif shape == "fork-join":
            read = _fork_join(op, width, rng)
        elif shape == "layered":
            layer = op // width
            pool = range(max(layer - 1, 0) * width, layer * width)
            read = [int(each) for each in rng.choice(pool, min(len(pool), 3), replace=False)] if layer else []
        elif shape == "grid":
            read = [op - width] * (op >= width) + [op - 1] * (op % width > 0)
        else:
            read = [(op - 1) // max(width // 4, 2)]
        for producer in read:
            readers[producer].append(op)
    if shape == "in-tree":
        reverse: list[list[int]] = [[] for _ in range(n_ops)]
        for producer, consumers in enumerate(readers):
            for consumer in consumers:
                reverse[n_ops - 1 - consumer].append(n_ops - 1 - producer)
        return reverse
    return readers


def _fork_join(op: int, width: int, rng: np.random.Generator) -> list[int]:
    """Blocks of `width` branches of two ops between single ops."""
    block = 2 * width + 1
    at = (op - 1) % block
    start = op - 1 - at
    if at < width:
        return [start]
    return [op - width] if at < 2 * width else list(range(op - width, op))


def instance_of(at: Parameters, name: str) -> tuple[OpGraph, Cluster]:
    """Makes the graph and the cluster of parameters."""
    rng = np.random.default_rng(at.seed)
    readers = readers_of(at.shape, at.n_ops, at.width, rng)
    op_s = OP_S * rng.lognormal(-(at.spread**2) / 2, at.spread, at.n_ops)
    sizes = at.ratio * OP_S * LINK_BYTES_PER_S * rng.lognormal(-(at.spread**2) / 2, at.spread, at.n_ops)
    resident = np.round(RESIDENT_BYTES * rng.lognormal(0.0, min(at.spread, 1.0), at.n_ops))
    ops = [
        {"name": f"op{op}", "flops": round(float(op_s[op]) * FLOPS_PER_S), "resident_bytes": resident[op]}
        for op in range(at.n_ops)
    ]
    tensors = [(op, round(float(sizes[op])), readers[op]) for op in range(at.n_ops) if readers[op]]
    graph = build_graph(name, "adversarial", ops, tensors)
    n = at.n_devices
    memory = at.tightness * (resident.sum() + 2 * sizes.max()) / n + 4 * sizes.max()
    memory = float(np.ceil(memory)) if at.tightness else AMPLE_BYTES
    speeds = FLOPS_PER_S * at.device_spread ** -np.linspace(0.0, 1.0, n)
    devices = tuple(
        Device(f"device{index}", f"speed{index}", memory, float(speed), 1e15, 0.0)
        for index, speed in enumerate(speeds)
    )
    half = np.arange(n) < (n + 1) // 2
    bytes_per_s = np.where(half[:, None] == half, LINK_BYTES_PER_S, LINK_BYTES_PER_S / at.link_spread)
    rules = {"schedule": at.schedule, "sharing": at.sharing}
    return graph, Cluster(name, devices, bytes_per_s, np.full((n, n), 1e-6), **rules)  # type: ignore[arg-type]


class Adversary:
    """Scores parameters by how far `auto` is behind the best of the other placers."""

    def __init__(self, policy: StoredPolicy) -> None:
        self._policy, self._runner = policy, TrialRunner()

    def place(self, name: str, problem: Problem, seconds: float, seed: int) -> PlacementResult:
        """Runs a placer."""
        placer = make_placer(name, self._policy, "topo")
        order = "topo" if placer.is_learned else ""
        budget = Budget(None, seconds, running_cpu_s)
        return self._runner.place(placer, Objective(problem), budget, order=order, seed=seed)

    def step_s(self, name: str, problem: Problem, seconds: float, seed: int) -> float:
        """The step that a placer finds; infinite where it is infeasible, or another than `auto` is late."""
        found = self.place(name, problem, seconds, seed)
        is_late = name not in (PLACER, OLD) and found.cpu_s > MOST_LATE * seconds
        return found.step_time.total_s if found.feasible and not is_late else np.inf

    def steps(
        self, at: Parameters, seeds: tuple[int, ...], more: tuple[str, ...] = ()
    ) -> dict[str, list[float]]:
        """The steps of all placers by seed."""
        problem = Problem(*instance_of(at, "instance"))
        if not problem.is_feasible:
            return {}
        return {
            name: [self.step_s(name, problem, at.seconds, seed) for seed in seeds]
            for name in (PLACER, *more, *OTHERS, *QUICK)
        }


def gap_of(steps: dict[str, list[float]]) -> tuple[float, str]:
    """Returns the gap of geometric means, at most `MAX_GAP`, and the placer that is ahead."""
    means = {name: float(np.exp(np.mean(np.log(of)))) for name, of in steps.items()}
    others = {name: mean for name, mean in means.items() if name != PLACER and mean < np.inf}
    if not others:
        return 1.0, ""
    ahead = min(others, key=others.__getitem__)
    return min(means[PLACER] / others[ahead], MAX_GAP), ahead


WORST, PAIRED_SEEDS, BEST_SEEDS, BEST_S = 10, (4, 5, 6, 7, 8), (0, 1), 1.0


def worst(rows: Rows) -> dict[str, Parameters]:
    """Picks the worst instances that differ in shape, ops, devices or schedule, by name."""
    found: dict[str, Parameters] = {}
    keys = set()
    for row in sorted(rows, key=lambda row: -row.get("confirmed", 0.0)):
        at = Parameters(**{name: row[name] for name in Parameters.__dataclass_fields__})
        key = (at.shape, at.n_ops, at.n_devices, at.device_spread, at.schedule)
        if row.get("confirmed", 0.0) > CONFIRMED_FROM and key not in keys and len(found) < WORST:
            keys.add(key)
            name = f"{at.shape}-{at.n_ops}-{at.n_devices}"
            found[name + "b" if name in found else name] = at
    return found


def write_instances(found: dict[str, Parameters], folder: Path) -> None:
    """Writes graphs and clusters, and enters the sources."""
    pairs = {name: instance_of(at, name) for name, at in found.items()}
    write_graphs(folder / "adversarial.jsonl.gz", [graph for graph, _ in pairs.values()])
    for name, (_, cluster) in pairs.items():
        write_cluster(folder / f"adversarial-{name}.json", replace(cluster, name=f"adversarial-{name}"))
    sources = dict(read_json(folder / "sources.json"))  # type: ignore[call-overload]
    sources["adversarial"] = {
        "title": "graphs on which `auto` was behind",
        "licence": "Apache-2.0",
        "graphs": "adversarial.jsonl.gz",
        "pipelined": False,
        "clusters": {name: f"adversarial-{name}.json" for name in sorted(pairs)},
    }
    write_json_atomic(folder / "sources.json", sources, indent=1)


def write_best(found: dict[str, Parameters], adversary: Adversary, folder: Path, commit: str) -> None:
    """Writes the best placement of some placers with much time, as submissions."""
    folder.mkdir(exist_ok=True)
    for name in found:
        instance = load_instance(f"adversarial:{name}")
        best, method = None, ""
        for seconds, placers in (
            (BEST_S, (PLACER, "annealing", "local-search", "refine")),
            (1.0, ("metis",)),
        ):
            for placer, seed in product(placers, BEST_SEEDS):
                found_by = adversary.place(placer, instance.problem, seconds, seed)
                if found_by.feasible and (
                    best is None or found_by.step_time.total_s < best.step_time.total_s
                ):
                    best, method = found_by, placer
        assert best is not None, name
        record = placement_to_json(instance.graph, instance.cluster, best.placement)
        record |= {"method": method, "found_by": "Placewalk", "commit": commit, "date": "2026-11-27"}
        write_json_atomic(folder / f"{name}.json", record | {"seconds": round(best.cpu_s, 3)})


def row_of(draws: str, name: str, at: Parameters, steps: dict[str, list[float]]) -> Row:
    """A row of the page: parameters, the gap, and the geometric mean of each placer's steps."""
    means = {placer: float(np.exp(np.mean(np.log(of)))) for placer, of in steps.items()}
    others = {placer: mean for placer, mean in means.items() if placer not in (PLACER, OLD)}
    ahead = min(others, key=others.__getitem__) if others else ""
    least = others[ahead] if others else np.inf
    gaps = [means.get(placer, np.inf) / least if least < np.inf else 1.0 for placer in (PLACER, OLD)]
    named = dict.fromkeys((PLACER, OLD, *OTHERS, *QUICK))
    seeds = {"seeds": len(steps[PLACER]) if steps else 0}
    gap = {"gap": gaps[0], "gap_before": gaps[1] if OLD in means else None, "ahead": ahead}
    return {"draws": draws, "instance": name, **asdict(at), **seeds, **gap, **named, **means}


def page_rows(searches: Sequence[Rows], found: dict[str, Parameters], adversary: Adversary) -> Rows:
    """Makes the rows of the page: of all searches, and of the worst instances with other seeds."""
    rows = []
    for draws, searched in zip(("first", "second", "third"), searches, strict=False):
        for row in searched:
            at = Parameters(**{name: row[name] for name in Parameters.__dataclass_fields__})
            rows.append(row_of(draws, "", at, row.get("confirming", row["steps"])))
    for name, at in found.items():
        rows.append(row_of("worst", name, at, adversary.steps(at, PAIRED_SEEDS, (OLD,))))
    return rows


def finish() -> None:
    """Writes instances, their best placements, or the rows of the page: `adversary STEP OUT ...`."""
    step, folder, *files = sys.argv[1:]
    searches = [
        [json.loads(line) for line in Path(file).read_text().splitlines()]
        for file in files
        if file.endswith(".jsonl")
    ]
    found = worst(searches[0])
    if step == "instances":
        write_instances(found, Path(folder))
        return
    adversary = Adversary(open_policy("pretrained"))
    if step == "best":
        write_best(found, adversary, Path(folder), files[-1])
    else:
        load_plugins(files[-1:])
        write_rows(Path(folder), page_rows(searches, found, adversary))


def main() -> None:
    """Anneals a chain for each shape in turns, and appends a line for each candidate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cpu-s", type=float, default=1500.0)
    options = parser.parse_args()
    rows: Rows = []
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
    known = {(row["chain"], row["step"]): row for row in rows}
    adversary, began = Adversary(open_policy("pretrained")), time.process_time()
    states: dict[int, tuple[Parameters, float]] = {}
    for step in range(options.steps):
        for chain, shape in enumerate(SHAPES):
            rng = np.random.default_rng([options.seed, chain, step])
            at, energy = states.get(chain, (None, -np.inf))
            new = draw(shape, rng) if at is None or (at and step < 3) else moved(at, rng)
            row = known.get((chain, step))
            if row is None:
                if time.process_time() - began > options.cpu_s:
                    return
                steps = adversary.steps(new, (0,))
                gap, ahead = gap_of(steps)
                row = {"chain": chain, "step": step, **asdict(new)}
                row |= {"gap": gap, "ahead": ahead, "steps": steps}
                if gap > CONFIRMED_FROM:
                    confirmed = adversary.steps(new, CONFIRMING_SEEDS)
                    row["confirmed"], row["confirmed_ahead"] = gap_of(confirmed)
                    row["confirming"] = confirmed
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(chain, step, shape, gap, ahead, row.get("confirmed"), flush=True)
            energy_new = np.log(row.get("confirmed", row["gap"]))
            cooled = step / options.steps
            temperature = FIRST_TEMPERATURE * (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** cooled
            if energy_new >= energy or rng.random() < np.exp((energy_new - energy) / temperature):
                states[chain] = new, energy_new


if __name__ == "__main__":
    finish() if sys.argv[1] in ("instances", "best", "rows") else main()
