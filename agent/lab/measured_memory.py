"""Makes the rows of `measured_memory`: simulated steps and peak memory of Sailor's measured plans.

A node is one device, whose layers have the times that Sailor measured with tensor parallelism in a node.
Bytes are those of one GPU of the node.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from agent.lab.captured_shards import pipelined
from agent.lab.pivot import write_rows
from agent.lab.questions import RESULTS
from agent.lab.replayed_allocator import reserved_bytes
from envs.cluster.cluster import Cluster, Device
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.op_graph import OpGraph, build_graph
from graphs.system.progress import followed

DATA = Path(__file__).parent / "published" / "sailor.json.gz"
"""Plans, sizes and times of layers of eth-easl/sailor; the licence is beside the rows."""
FP32_BYTES, STATE_BYTES = 4, 16
"""Bytes of a number; bytes of a parameter with its gradient and two states of Adam."""
SLOW_BYTES_PER_S, FAST_BYTES_PER_S, BEHIND_SLOW = 0.115e9, 2.857e9, "RTX-3090"
"""Bandwidths of nodes of RTX boards: to and from those of RTX 3090, and between others."""
GPU_BYTES_PER_S = 22.93e9
"""Bandwidth between two GH200 of different nodes; a node of four has four such links."""
REST_BYTES = 3e9
"""What a GPU of the RTX nodes holds besides tensors, from Sailor's own check of memory."""
FITTED, OPT_LAYERS = "N1_D1_M4_G1", 26
"""The plan that tells what a GH200 holds besides tensors; layers of OPT-350M."""


@dataclass(frozen=True)
class PredictedRow:
    """What was measured of a plan, and its prediction: seconds of a step, or bytes of the fullest GPU.

    Attributes:
        use: empty, or why the row is left out of the errors.
        what: what is predicted, and from what.
    """

    cluster: str
    model: str
    plan: str
    stages: int
    replicas: int
    micro: int
    microbatches: int
    use: str
    what: str
    measured: float
    predicted: float


def bytes_per_s(one: str, other: str, gpus: int) -> float:
    """Returns the bandwidth between two nodes."""
    if one.startswith("GH"):
        return gpus * GPU_BYTES_PER_S
    return SLOW_BYTES_PER_S if BEHIND_SLOW in (one, other) else FAST_BYTES_PER_S


def pipeline_graph(sizes: Any, micro: int, seconds: Any, sent_bytes: float) -> OpGraph:
    """Makes the step of one microbatch.

    Args:
        sizes: parameters, numbers kept and numbers put out of each layer on a GPU, for a micro batch of 1.
        seconds: forward, backward and update seconds of each layer on each device, (n_devices, n_layers, 3).
        sent_bytes: bytes of what a layer sends to the next one, and back.
    """
    n = len(sizes)
    ops: list[dict[str, object]] = []
    at: dict[tuple[str, int], int] = {}

    def add(part: str, layer: int, **columns: object) -> None:
        at[part, layer] = len(ops)
        ops.append({"name": f"{layer}/{part}", "colocate": layer, **columns})

    for layer in range(n):
        add("weight", layer, type="parameter", resident_bytes=STATE_BYTES * sizes[layer][0])
        add("forward", layer, type="layer", seconds=times(seconds, layer, 0))
    for layer in reversed(range(n)):
        add("backward", layer, type="layer", phase="backward", seconds=times(seconds, layer, 1))
    for layer in range(n):
        add("update", layer, type="adam", phase="optimizer", seconds=times(seconds, layer, 2))
    tensors: list[tuple[int, float, list[int]]] = []
    for layer in range(n):
        forward, backward, update = (at[part, layer] for part in ("forward", "backward", "update"))
        parameters, kept, _ = (FP32_BYTES * size for size in sizes[layer])
        kept *= micro
        if layer < n - 1:
            kept = max(kept - sent_bytes, 0.0)
            following = [at["forward", layer + 1], at["backward", layer + 1]]
            tensors.append((forward, sent_bytes, following))
            tensors.append((at["backward", layer + 1], sent_bytes, [backward]))
        tensors.append((forward, kept, [backward]))
        tensors.append((at["weight", layer], parameters, [forward, backward, update]))
        tensors.append((backward, parameters, [update]))
    return build_graph("sailor", "", ops, tensors)


def times(seconds: Any, layer: int, part: int) -> dict[str, float]:
    """Returns the seconds of an op by kind of device."""
    return {f"node{at}": float(own[layer, part]) for at, own in enumerate(seconds)}


def simulated(data: Any, plan: Any, replica: int, blocks: bool) -> tuple[float, Any]:
    """Simulates the pipeline of one replica, with the all-reduce of gradients after it.

    Returns:
        Seconds of the step, and the most bytes on a GPU of each stage.
    """
    gpus, micro, sizes = plan["gpus"], plan["micro"], data["sizes"][f"{plan['model']}/{plan['gpus']}"]
    kinds = [stage[replica] for stage in plan["kinds"]]
    ends = np.cumsum(plan["layers"])
    seconds = np.array([data["seconds"][f"{plan['model']}/{kind}/{micro}/{gpus}"] for kind in kinds])
    seconds = seconds[:, : len(sizes)].copy()
    sent_bytes = float(FP32_BYTES * micro * sizes[0][2])
    links = np.array([[bytes_per_s(one, other, gpus) for other in kinds] for one in kinds])
    for stage, end in enumerate(ends):
        first = int(end) - plan["layers"][stage]
        update_s = float(seconds[stage, first, 2])
        seconds[stage, :, 2] = 0.0
        seconds[stage, first, 2] = update_s + reduce_s(sizes[first:end], plan["kinds"][stage], gpus)
        for other, layer in ((stage - 1, first), (stage + 1, int(end) - 1)):
            if blocks and 0 <= other < len(kinds):
                seconds[stage, layer, :2] += sent_bytes / links[stage, other]
    devices = tuple(Device(str(at), f"node{at}", 1e13, 1e13, 1e13, 0.0) for at in range(len(kinds)))
    links = np.full_like(links, 1e15) if blocks else links
    cluster = Cluster("sailor", devices, links, np.zeros_like(links), sharing="pair")
    problem = Problem(pipeline_graph(sizes[: ends[-1]], micro, seconds, sent_bytes), cluster)
    step = PipelinedProblem(problem, Pipeline("1f1b", microbatches(plan)))
    time = step.simulate(step.chain.stages(np.array([0, *ends[:-1]]), np.arange(len(kinds))))
    return time.total_s, time.peak_bytes


def reduce_s(sizes: Sequence[Sequence[float]], kinds: Sequence[str], gpus: int) -> float:
    """Seconds of the ring all-reduce of a stage's gradients over its replicas."""
    if len(kinds) == 1:
        return 0.0
    slowest = min(bytes_per_s(one, other, gpus) for one, other in pairwise(kinds))
    sent = 2 * (len(kinds) - 1) / len(kinds) * gpus * FP32_BYTES * sum(size[0] for size in sizes)
    return float(sent / slowest)


def microbatches(plan: Any) -> int:
    """Returns the microbatches of a step of each replica."""
    return int(plan["batch"] // plan["micro"] // plan["replicas"])


def unlike(plan: Any) -> str:
    """Says why a plan is left out."""
    if plan["model"].startswith("GPT") and sum(plan["layers"]) == OPT_LAYERS:
        return "has the layers of the other model"
    if plan["plan"] == FITTED:
        return "fitted to"
    return ""


def rows_of(data: Any, plan: Any) -> Iterator[PredictedRow]:
    """Predicts a plan."""
    count = microbatches(plan)
    kept = {name: plan[name] for name in ("cluster", "model", "plan", "replicas", "micro")}
    row = partial(PredictedRow, **kept, stages=len(plan["layers"]), microbatches=count, use=unlike(plan))
    each = [[simulated(data, plan, at, blocks) for at in range(plan["replicas"])] for blocks in (False, True)]
    for what, found in zip(("copies overlap", "copies block"), each, strict=True):
        yield row(what=f"time, {what}", measured=plan["measured_s"], predicted=max(s for s, _ in found))
    predicted = {"measured sizes": max(peak.max() for _, peak in each[0])}
    if not row(what="", measured=0, predicted=0).use.startswith("has"):
        for norms, name in ((False, "captured"), (True, "captured, small norms")):
            own, stages = pipelined(plan, count, norms)
            predicted[name] = own.simulate(stages).peak_bytes.max()
        surplus = reserved_bytes(plan, count) - own.simulate(stages).peak_bytes
        predicted["measured sizes, reserved"] = max((peak + surplus).max() for _, peak in each[0])
    for what, found in predicted.items():
        yield row(what=f"memory, {what}", measured=plan["measured_bytes"], predicted=float(found))


def with_rest(rows: Sequence[PredictedRow]) -> Iterator[PredictedRow]:
    """Adds to the memory of tensors what else a GPU holds."""
    fitted = {row.what: row.measured - row.predicted for row in rows if row.use == "fitted to"}
    for row in rows:
        rest = fitted[row.what] if row.cluster == "clariden" else REST_BYTES
        yield replace(row, predicted=row.predicted + rest) if row.what.startswith("memory") else row


def main() -> None:
    """Writes the rows."""
    from agent.lab.predicted_elsewhere import elsewhere

    data = json.loads(gzip.decompress(DATA.read_bytes()))
    rows = [row for plan in followed(data["plans"], "plans") for row in rows_of(data, plan)]
    found = [*with_rest(rows), *elsewhere()]
    rounded = [replace(row, predicted=float(f"{row.predicted:.6g}")) for row in found]
    write_rows(RESULTS / "measured_memory.csv.gz", [asdict(row) for row in rounded])


if __name__ == "__main__":
    main()
