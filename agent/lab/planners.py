"""Makes the rows of `planners`: plans of the planners of eth-easl/sailor and ours, and what both judges say.

A device is one, two or four GPUs of a node, whose layers have the times that Sailor measured with tensor
parallelism over them. A plan has equal pipelines, as many as the cluster has devices for. What placers do not
choose is enumerated here: GPUs of a device, devices of a pipeline and the micro batch.

    python -m agent.lab.planners SAILOR PYTHON FOLDER

SAILOR is the folder that has eth-easl/sailor as `sailor`, PYTHON the interpreter of its environment, and
FOLDER where plans are written. Plans that are there already are read.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.lab.pivot import write_rows
from agent.lab.questions import RESULTS
from agent.placers.base import PLACERS, Budget
from envs.cluster.cluster import Cluster, Device
from envs.objective import objective_of
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.op_graph import OpGraph, build_graph

ZONE, NODE, FLOAT_BYTES, BUCKET_BYTES = "us-central1-a", 4, 4, 5e8
MEMORY_BYTES = {"A100-40": 40 * 2**30, "V100-16": 16 * 2**30}
CONFIGS = {"OPT-350": "opt_350", "GPT-Neo-2.7": "gpt_neo27"}
STATE_BYTES, SAFE_STATE_BYTES = 16, 24
"""Bytes of a parameter with its gradient and Adam's state, and what Sailor's check takes."""
MICRO = (1, 2, 4, 8)
MOST_STAGES = 16
N_TRIED, N_LONG = 48, 6
"""Pipelines that are searched, and those of them that are searched longer."""
EVALUATIONS, LONG = 300, 3000

CLUSTERS = tuple(f"A100-40:{n},V100-16:{3 * n}" for n in (8, 32, 80, 128))
FIELD = ("SAILOR", "AMP", "FlashFlex", "DTFM", "Piper", "Varuna", "Galvatron", "Metis")
OURS = (("refine", False), ("refine", True), ("pipedream", False), ("equal-time", False))
"""Placers, and whether a device is a whole node."""
SECONDS = {"Metis, 300 s": 300}
"""Wall seconds of Metis in Sailor's script; else it has 20 on the smallest cluster and 60 on others."""
STOP_S = 180
"""Wall seconds after which a planner without a limit of its own is stopped."""
LONG_METIS = tuple((model, CLUSTERS[1]) for model in CONFIGS)
"""Cases of Metis with 300 s."""

Column = tuple[tuple[tuple[str, ...], int], ...]
"""Kinds of the nodes and GPUs of each stage of one replica."""


@dataclass(frozen=True)
class Sailor:
    """Profiles, sizes and links that Sailor measured for a model."""

    root: Path
    model: str

    def _read(self, name: str) -> Any:
        return json.loads((self.root / "sailor" / name).read_text())

    @cached_property
    def batch(self) -> int:
        """Global batch."""
        config = self._read(f"Planner/simulations/configs/training_config_{CONFIGS[self.model]}.json")
        return int(config["global_batch_size"])

    @cached_property
    def _profiles(self) -> Any:
        return self._read("Planner/simulations/profiles_tmp.json")[self.model]

    @cached_property
    def _sizes(self) -> Any:
        return self._read("Planner/llm_info.json")[self.model]

    @cached_property
    def _links(self) -> Any:
        return self._read("providers/multizone_bandwidths_het.json")[ZONE]

    @lru_cache  # noqa: B019
    def seconds(self, kind: str, micro: int, gpus: int) -> NDArray[np.float64] | None:
        """Forward, backward and update seconds of each layer, (n_layers, 3); None if not measured."""
        found = self._profiles.get(kind, {}).get(str(micro), {}).get(str(gpus))
        if found is None:
            return None
        return np.array([found[layer] for layer in sorted(found, key=int)], dtype=np.float64)

    @lru_cache  # noqa: B019
    def sizes(self, gpus: int) -> NDArray[np.float64]:
        """Parameters, numbers kept and numbers put out of each layer on a GPU, (n_layers, 3)."""
        found, columns = self._sizes[str(gpus)], ("params_floats", "act_mem_floats", "act_output_floats")
        return np.array([[found[layer][c] for c in columns] for layer in sorted(found, key=int)], dtype=float)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.sizes(1))

    def bytes_per_s(self, one: str, other: str, sent: float, gpus: tuple[int, int] = (1, 1)) -> float:
        """Bandwidth of a message between GPUs of two nodes."""
        a, b = (str(min(each, NODE)) for each in gpus)
        coefficients = self._links[one][a][ZONE][other][b][0]
        return 1e9 * float(np.polyval(coefficients, math.log2(sent / 1e6)))

    def send_s(self, one: tuple[str, int], other: tuple[str, int], sent: float) -> float:
        """Seconds of a message between stages."""
        return sent / self.bytes_per_s(one[0], other[0], sent, (one[1], other[1]))

    def reduce_s(self, kinds: Sequence[str], n: int, size: float) -> float:
        """Seconds of the ring all-reduce of so many bytes over `n` replicas on GPUs of some kinds."""
        if n == 1 or not size:
            return 0.0
        total = 0.0
        while size > 0:
            bucket = min(size, BUCKET_BYTES)
            slowest = min(self.bytes_per_s(one, other, bucket / n) for one in kinds for other in kinds)
            total += 2 * (n - 1) * bucket / n / slowest
            size -= bucket
        return total

    def stage_seconds(self, kinds: Sequence[str], micro: int, gpus: int) -> NDArray[np.float64] | None:
        """Seconds of each layer on a stage of one replica.

        Layers that several nodes share take the slowest node's share, and all-reduces between nodes, two
        in each pass of a layer.
        """
        if len(kinds) == 1 or (len(set(kinds)) == 1 and self.seconds(kinds[0], micro, gpus) is not None):
            return self.seconds(kinds[0], micro, gpus)
        measured = [self.seconds(kind, micro, min(gpus, NODE)) for kind in set(kinds)]
        if any(each is None for each in measured):
            return None
        slowest = np.max([each for each in measured if each is not None], axis=0)
        found: NDArray[np.float64] = slowest * min(1.0, NODE / gpus)
        size = float(FLOAT_BYTES * micro * self.sizes(1)[0, 2])
        n_nodes = max(math.ceil(gpus / NODE), len(set(kinds)))
        found[:, :2] += 2 * self.reduce_s(sorted(set(kinds)), n_nodes, size)
        return found


def rest_bytes(gpus: int) -> float:
    """What a GPU holds besides tensors, from Sailor's check of memory."""
    return 2e9 if gpus == 1 else 3e9


def graph_of(
    sizes: NDArray[np.float64], micro: int, seconds: NDArray[np.float64], sent: float, state: float
) -> OpGraph:
    """Makes the step of one microbatch; device `i` has the seconds of kind `node{i}`.

    Args:
        sizes: parameters, numbers kept and put out of each layer on a GPU.
        seconds: of each layer on each device, (n_devices, n_layers, 3).
        sent: bytes that a layer sends to the next one.
        state: bytes of a parameter with what belongs to it.
    """
    n = len(sizes)
    ops: list[dict[str, object]] = []
    at: dict[tuple[str, int], int] = {}

    def add(part: str, layer: int, column: int = -1, **columns: object) -> None:
        at[part, layer] = len(ops)
        if column >= 0:
            columns["seconds"] = {f"node{d}": float(own[layer, column]) for d, own in enumerate(seconds)}
        ops.append({"name": f"{layer}/{part}", "colocate": layer, **columns})

    for layer in range(n):
        add("weight", layer, type="parameter", resident_bytes=state * sizes[layer, 0])
        add("forward", layer, 0, type="layer")
    for layer in reversed(range(n)):
        add("backward", layer, 1, type="layer", phase="backward")
    for layer in range(n):
        add("update", layer, 2, type="adam", phase="optimizer")
    tensors: list[tuple[int, float, list[int]]] = []
    for layer in range(n):
        forward, backward, update = (at[part, layer] for part in ("forward", "backward", "update"))
        parameters, kept = FLOAT_BYTES * sizes[layer, 0], FLOAT_BYTES * micro * sizes[layer, 1]
        if layer < n - 1:
            kept = max(kept - sent, 0.0)
            tensors.append((forward, sent, [at["forward", layer + 1], at["backward", layer + 1]]))
            tensors.append((at["backward", layer + 1], sent, [backward]))
        tensors.append((forward, kept, [backward]))
        tensors.append((at["weight", layer], parameters, [forward, backward, update]))
        tensors.append((backward, parameters, [update]))
    return build_graph("sailor", "", ops, tensors)


def cluster_of(memory: Sequence[float], links: NDArray[np.float64]) -> Cluster:
    """Makes a cluster of devices with measured layers."""
    devices = [Device(str(at), f"node{at}", each, 1e13, 1e13, 0.0) for at, each in enumerate(memory)]
    return Cluster("sailor", tuple(devices), links, np.zeros_like(links), sharing="pair")


@dataclass(frozen=True)
class Verdict:
    """Seconds of a step if copies block, or overlap with work; most bytes over the memory of a GPU."""

    ours_s: float
    overlap_s: float
    over_bytes: float


@dataclass(frozen=True)
class PlannerRow:
    """A plan of a planner, and what the judges say.

    Attributes:
        case: model and number of GPUs.
        cpu_s: processor seconds of planning, without profiles that are read and kernels that are compiled.
        skipped: plans before it in the planner's list that do not fit Sailor's check.
        sailor_s, ours_s: seconds of a step by Sailor's simulator, and by ours if copies block.
        overlap_s: by ours if copies overlap with work.
        sailor_fits: whether Sailor's check finds the memory.
        over_bytes: most bytes over the memory of a GPU by our simulator; negative if it fits.
        plan: micro batch and pipelines, as JSON.
    """

    case: str
    planner: str
    cpu_s: float
    skipped: int
    sailor_s: float
    sailor_fits: bool
    ours_s: float
    overlap_s: float
    over_bytes: float
    plan: str


NUMBERS = ("cpu_s", "sailor_s", "ours_s", "overlap_s", "over_bytes")


def columns_of(stages: Sequence[Any]) -> list[Column] | None:
    """Lists the replicas of a pipeline, each kind once; None if stages have unequal numbers of them."""
    expanded = [[(tuple(k), t) for k, t, n in runs for _ in range(n)] for _, _, runs in stages]
    if len({len(each) for each in expanded}) > 1:
        return None
    return list(dict.fromkeys(zip(*expanded, strict=True)))


def judge(data: Sailor, plan: Mapping[str, Any]) -> Verdict | str:
    """Simulates a plan; returns words if layers were not measured as it runs them."""
    micro, pipelines = plan["micro"], plan["pipelines"]
    replicas = [sum(n for _, _, n in stages[0][2]) for stages in pipelines]
    count = math.ceil(data.batch / (micro * replicas[-1] * len(pipelines)))
    verdicts = []
    for stages in {json.dumps(each): each for each in pipelines}.values():
        columns = columns_of(stages)
        own_micro = [micro] * len(stages)
        if columns is None:
            sums = [sum(n for _, _, n in runs) for _, _, runs in stages]
            whole = micro * sums[0]
            own_micro = [max(m for m in (1, *MICRO) if m <= max(1, math.ceil(whole / n))) for n in sums]
            slow = [max(runs, key=lambda run: (run[0][0].startswith("V"), -run[1])) for _, _, runs in stages]
            columns = [tuple((tuple(run[0]), run[1]) for run in slow)]
            share = [whole / n / m for n, m in zip(sums, own_micro, strict=True)]
        else:
            share = [1.0] * len(stages)
        reduce = [reduced(data, stage, len(pipelines), pipelines) for stage in stages]
        for column in columns:
            verdict = judged_column(data, stages, column, own_micro, share, count, reduce)
            if isinstance(verdict, str):
                return verdict
            verdicts.append(verdict)
    return Verdict(*(max(getattr(each, column.name) for each in verdicts) for column in fields(Verdict)))


def reduced(data: Sailor, stage: Any, n_pipelines: int, pipelines: Sequence[Any]) -> float:
    """Seconds of the all-reduce of a stage's gradients over its replicas and all pipelines."""
    first, end, runs = stage
    n = sum(n for _, _, n in runs) * n_pipelines
    kinds = {kind for own, _, _ in runs for kind in own}
    if n_pipelines > 1:
        kinds = {kind for stages in pipelines for _, _, own in stages for each, _, _ in own for kind in each}
    size = FLOAT_BYTES * float(data.sizes(1)[first:end, 0].sum()) / min(NODE, *(t for _, t, _ in runs), NODE)
    return data.reduce_s(sorted(kinds), n, size)


def judged_column(
    data: Sailor,
    stages: Sequence[Any],
    column: Column,
    micro: Sequence[int],
    share: Sequence[float],
    count: int,
    reduce: Sequence[float],
) -> Verdict | str:
    """Simulates one replica of a pipeline."""
    n = len(stages)
    seconds = np.zeros((n, data.n_layers, 3))
    sizes = np.zeros((data.n_layers, 3))
    for at, ((first, end, _), (kinds, gpus)) in enumerate(zip(stages, column, strict=True)):
        measured = data.stage_seconds(kinds, micro[at], gpus)
        if measured is None:
            return f"no profile of {'+'.join(sorted(set(kinds)))} with micro batch {micro[at]} and tp {gpus}"
        seconds[at, :, :2] = measured[:, :2] * share[at]
        seconds[at, first, 2] = measured[first, 2] + reduce[at]
        sizes[first:end] = data.sizes(min(gpus, NODE))[first:end] * [1.0, micro[at] * share[at], 1.0]
    sent = float(FLOAT_BYTES * micro[0] * data.sizes(1)[0, 2])
    ends = [(kinds[0], gpus) for kinds, gpus in column]
    apart = np.array([[sent / data.send_s(one, other, sent) for other in ends] for one in ends])
    starts, devices = np.array([first for first, _, _ in stages]), np.arange(n)
    found = []
    for blocks in (True, False):
        own, links = seconds.copy(), np.full_like(apart, 1e15) if blocks else apart
        for at, (first, end, _) in enumerate(stages):
            for other, layer in ((at - 1, first), (at + 1, end - 1)):
                if blocks and 0 <= other < n:
                    own[at, layer, :2] += sent / apart[at, other]
        problem = Problem(graph_of(sizes, 1, own, sent, STATE_BYTES), cluster_of([1e13] * n, links))
        step = PipelinedProblem(problem, Pipeline("1f1b", count))
        found.append(step.simulate(step.chain.stages(starts, devices)))
    limits = [min(MEMORY_BYTES[kind] for kind in kinds) - rest_bytes(gpus) for kinds, gpus in column]
    return Verdict(found[0].total_s, found[1].total_s, float((found[1].peak_bytes - limits).max()))


@dataclass(frozen=True)
class Shape:
    """A pipeline: GPUs of a device and devices, by kind; number of equal pipelines, and micro batch."""

    gpus: tuple[int, ...]
    devices: tuple[int, ...]
    replicas: int
    micro: int
    estimate_s: float


def shapes(data: Sailor, counts: Mapping[str, int], only_nodes: bool) -> Iterator[Shape]:
    """Yields shapes of pipelines with an estimate of the step in perfect balance."""
    kinds, sent = [*counts], FLOAT_BYTES * data.sizes(1)[0, 2]
    sizes = (NODE,) if only_nodes else (1, 2, NODE)
    for gpus, micro in product(product(sizes, repeat=len(kinds)), MICRO):
        measured = [data.seconds(kind, micro, g) for kind, g in zip(kinds, gpus, strict=True)]
        speeds = [0.0 if each is None else 1 / each[:, :2].sum() for each in measured]
        for devices in product(*(range(MOST_STAGES + 1 if speed else 1) for speed in speeds)):
            n = sum(devices)
            unused = any(g != sizes[0] and not d for g, d in zip(gpus, devices, strict=True))
            if not 1 <= n <= min(MOST_STAGES, data.n_layers) or unused:
                continue
            used = zip(counts.values(), gpus, devices, strict=True)
            replicas = min(have // (g * d) for have, g, d in used if d)
            if not replicas:
                continue
            count = math.ceil(data.batch / (micro * replicas))
            slow = [kind for kind, d in zip(kinds, devices, strict=True) if d][-1]
            copy = data.send_s((slow, max(gpus)), (slow, max(gpus)), sent * micro) if n > 1 else 0.0
            each_s = 1 / float(np.dot(devices, speeds)) + 4 * copy
            size = FLOAT_BYTES * data.sizes(max(gpus))[:, 0].sum() / n
            yield Shape(
                gpus,
                devices,
                replicas,
                micro,
                (count + n - 1) * each_s + data.reduce_s([slow], replicas, size),
            )


def searched(
    data: Sailor, kinds: Sequence[str], shape: Shape, placer: str, evaluations: int
) -> dict[str, Any] | None:
    """Lets a placer cut a pipeline; returns the plan, or None if it has none that fits."""
    of = [at for at, n in enumerate(shape.devices) for _ in range(n)]
    ends = [(kinds[at], shape.gpus[at]) for at in of]
    sent = float(FLOAT_BYTES * shape.micro * data.sizes(1)[0, 2])
    links = np.array([[sent / data.send_s(one, other, sent) for other in ends] for one in ends])
    whole, memory = data.sizes(1), []
    seconds = np.zeros((len(of), data.n_layers, 3))
    for at, (kind, gpus) in enumerate(ends):
        measured = data.seconds(kind, shape.micro, gpus)
        assert measured is not None, "shapes are of measured layers"
        part = float((whole[:, :2].sum(axis=0) / data.sizes(gpus)[:, :2].sum(axis=0)).min())
        memory.append(part * (MEMORY_BYTES[kind] - rest_bytes(gpus)))
        seconds[at, :, :2] = measured[:, :2]
        stage_bytes = FLOAT_BYTES * whole[:, 0].sum() / len(of) / gpus
        reduce_s = data.reduce_s([kind], shape.replicas, stage_bytes) / stage_bytes
        seconds[at, :, 2] = FLOAT_BYTES * whole[:, 0] / gpus * reduce_s
    graph = graph_of(whole, shape.micro, seconds, sent, SAFE_STATE_BYTES)
    count = math.ceil(data.batch / (shape.micro * shape.replicas))
    pipeline = Pipeline("1f1b", count, may_recompute=False)
    objective = objective_of(graph, cluster_of(memory, links), pipeline)
    result = PLACERS[placer].place(objective, Budget(evaluations), np.random.default_rng(0))
    if not result.feasible:
        return None
    device = result.placement.device_of[2 * np.arange(data.n_layers) + 1]  # of the forward ops
    firsts = [0, *(np.flatnonzero(np.diff(device)) + 1).tolist(), data.n_layers]
    stages = []
    for first, end in pairwise(firsts):
        kind, gpus = ends[device[first]]
        stages.append([first, end, [[[kind], gpus, shape.replicas]]])
    return {"micro": shape.micro, "pipelines": [stages]}


def search(
    data: Sailor, counts: Mapping[str, int], placer: str, only_nodes: bool
) -> tuple[list[dict[str, Any]], float]:
    """Searches the most promising pipelines; returns plans with the verdict of our judge, and seconds."""
    began = time.process_time()
    kinds, found = [*counts], []

    def add(shape: Shape, evaluations: int) -> None:
        plan = searched(data, kinds, shape, placer, evaluations)
        if plan:
            verdict = judge(data, plan)
            if isinstance(verdict, Verdict) and verdict.over_bytes <= 0:
                found.append((verdict.ours_s, shape, plan))

    first = sorted(shapes(data, counts, only_nodes), key=lambda shape: shape.estimate_s)[:N_TRIED]
    for shape in first:
        add(shape, EVALUATIONS)
    if placer == "refine":
        for _, shape, _ in sorted(found, key=lambda each: each[0])[:N_LONG]:
            add(shape, LONG)
    spent = time.process_time() - began
    found.sort(key=lambda each: each[0])
    return [{"plan": plan} for _, _, plan in found], spent


def moved(data: Sailor, plan: dict[str, Any]) -> dict[str, Any]:
    """Moves the cuts of a plan of one pipeline, a layer at a time, as long as that makes its step shorter."""

    def seconds(stages: Any) -> float:
        verdict = judge(data, {**plan, "pipelines": [stages]})
        return verdict.ours_s if isinstance(verdict, Verdict) and verdict.over_bytes <= 0 else math.inf

    best = plan["pipelines"][0]
    best_s, improved = seconds(best), True
    while improved:
        improved = False
        for cut, by in product(range(1, len(best)), (-1, 1)):
            ends = [end for _, end, _ in best]
            ends[cut - 1] += by
            firsts = [0, *ends[:-1]]
            if all(first < end for first, end in zip(firsts, ends, strict=True)):
                stages = [[*pair, runs] for *pair, (_, _, runs) in zip(firsts, ends, best, strict=True)]
                if (found := seconds(stages)) < best_s:
                    best, best_s, improved = stages, found, True
    return {**plan, "pipelines": [best]}


def theirs(python: str, root: Path, *words: object, stop_s: float | None = None) -> None:
    """Runs a planner of the field, or Sailor's simulator, in their environment."""
    script = Path(__file__).with_name("field_planners.py")
    subprocess.run([python, str(script), str(root), *map(str, words)], check=True, timeout=stop_s)


def planned(root: Path, python: str, folder: Path, data: Sailor, cluster: str) -> Iterator[dict[str, Any]]:
    """Yields what each planner finds: its name, processor seconds and plans, the best first."""
    counts = {kind: int(n) for kind, n in (each.split(":") for each in cluster.split(","))}
    stem = f"{data.model}_{cluster}".replace(":", "_").replace(",", "_")
    names = [*FIELD, *(SECONDS if (data.model, cluster) in LONG_METIS else ())]
    for name in names:
        out = folder / f"{name}_{stem}.json"
        if not out.exists():
            planner, limit_s = name.partition(",")[0], SECONDS.get(name, 20 if cluster == CLUSTERS[0] else 60)
            words = "plan", data.model, cluster, planner, limit_s, out
            try:
                theirs(python, root, *words, stop_s=STOP_S + SECONDS.get(name, 0))
            except subprocess.TimeoutExpired:
                out.write_text(json.dumps({"error": f"no end after {STOP_S} s", "plans": []}))
        found = json.loads(out.read_text())
        yield {"planner": name.replace("SAILOR", "Sailor"), **found}
        if name == "SAILOR":
            plan = moved(data, found["plans"][0]["plan"])
            yield {**found, "planner": "Sailor, layers moved", "plans": [{"plan": plan}]}
    for placer, only_nodes in OURS:
        out = folder / f"{placer}{'_nodes' if only_nodes else ''}_{stem}.json"
        if not out.exists():
            searched(data, [*counts], next(shapes(data, counts, only_nodes)), placer, 10)  # compiles kernels
            plans, spent = search(data, counts, placer, only_nodes)
            out.write_text(json.dumps({"cpu_s": spent, "skipped": 0, "plans": plans}))
        yield {"planner": placer + (", whole nodes" if only_nodes else ""), **json.loads(out.read_text())}


def rows_of(root: Path, python: str, folder: Path, model: str, cluster: str) -> Iterator[PlannerRow]:
    """Yields the rows of a model on a cluster."""
    data = Sailor(root / "sailor", model)
    gpus = sum(int(each.split(":")[1]) for each in cluster.split(","))
    results = list(planned(root, python, folder, data, cluster))
    plans = [each["plan"] for found in results for each in found["plans"]]
    asked, answer = folder / "asked.json", folder / "answer.json"
    asked.write_text(json.dumps(plans))
    theirs(python, root, "judge", model, asked, answer)
    verdicts = iter(zip(plans, json.loads(answer.read_text()), strict=True))
    for found in results:
        row = {"case": f"{model}, {gpus}", "planner": found["planner"], "cpu_s": found.get("cpu_s")}
        judged = list(islice(verdicts, len(found["plans"])))
        if not judged:
            print(f"{row}: {found.get('error', 'no plan fits the check of Sailor')}", file=sys.stderr)
            continue
        chosen = {"": judged[0]}
        if found["planner"] == "refine":
            chosen[", chosen by Sailor"] = min(judged, key=lambda each: (not each[1][0], each[1][1]))
        for words, (plan, (fits, seconds)) in chosen.items():
            own = judge(data, plan)
            if isinstance(own, str):
                print(f"{row}: {own}", file=sys.stderr)
                continue
            yield PlannerRow(
                **{**row, "planner": row["planner"] + words},
                **asdict(own),
                sailor_s=seconds,
                sailor_fits=fits,
                skipped=found["skipped"],
                plan=json.dumps(plan, separators=(",", ":")),
            )


def main() -> None:
    """Plans, judges, and writes the rows."""
    root, python, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        asdict(row)
        for model, cluster in product(CONFIGS, CLUSTERS)
        for row in rows_of(root, python, folder, model, cluster)
    ]
    for row in rows:
        row.update({name: float(f"{row[name]:.6g}") for name in NUMBERS})
    write_rows(RESULTS / "planners.csv.gz", rows)


if __name__ == "__main__":
    main()
