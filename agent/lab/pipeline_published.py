"""Simulated pipelined steps against those that vTrain, NeuSight and Sailor measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from agent.lab.recorded.costs import ERRORS, step_cells
from agent.lab.rows import RecordedRow, axis, grouped, markdown_table, read_table
from envs.cluster.cluster import Cluster, Device
from envs.cluster.kinds import KINDS
from envs.cluster.links import measured_links
from envs.cluster.presets import calibrated
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.io.layer_graphs import Layer, layer_graph
from graphs.system.array_types import FloatArray
from graphs.system.progress import followed

DATA = Path(__file__).parent / "published"
"""Steps of VIA-Research/vTrain, sitar-lab/NeuSight and eth-easl/sailor; their licences are beside them."""
SENT_BYTES = 4 * 2 * 2048 * 1024
"""Bytes that a microbatch of Sailor sends between stages: 2 sequences of 2,048 words, 1,024 wide, in fp32."""
SLOW_BYTES_PER_S, FAST_BYTES_PER_S, BEHIND_SLOW = 0.115e9, 2.857e9, "rtx3090"
"""Bandwidths that Sailor measured: to and from the node of RTX 3090, and between the others."""
CALIBRATED, FITTED, OVERLAPPING, BLOCKING = "calibrated", "fitted", "copies overlap", "copies block"
PASSES = ("forward", "backward", "update")
AS_THEY_ARE = (1.0, 0.0, 1.0)


@dataclass(frozen=True)
class PublishedRow:
    """A measured step and a simulated one; `costs` says how those of ops or copies are found."""

    source: str
    costs: str
    case: str
    stages: int
    replicas: int
    microbatches: int
    measured_s: float
    simulated_s: float


def step_seconds(
    cluster: Cluster,
    seconds: Any,
    weight_bytes: Any,
    sent_bytes: float,
    sizes: Sequence[int],
    microbatches: int,
) -> float:
    """Simulates a `1f1b` step of layers in a row; all stages have as many replicas.

    Args:
        seconds: of the passes and the update of each layer on each device, (n_devices, n_layers, 3).
        weight_bytes, sent_bytes: of each layer, (n_layers,); what a layer sends to the next one, and back.
        sizes: layers of each stage.
    """
    layers = [Layer(str(at), 0.0, 0.0, float(size), float(size)) for at, size in enumerate(weight_bytes)]
    for at in range(1, len(layers)):
        layers[at - 1].outputs.append((sent_bytes, [at]))
        layers[at].gradients.append((sent_bytes, [at - 1]))
    graph = layer_graph("published", "", cluster.devices[0].kind, layers, range(len(layers)))
    columns = {}
    for device, own in zip(cluster.devices, seconds, strict=True):
        of_op = {f"{at}/{part}": own[at, i] for at in range(len(layers)) for i, part in enumerate(PASSES)}
        columns[device.kind] = np.array([of_op.get(name, 0.0) for name in graph.op_names])
    problem = Problem(replace(graph, seconds=columns), cluster)
    pipelined = PipelinedProblem(problem, Pipeline("1f1b", microbatches))
    devices = np.arange(cluster.n_devices).reshape(len(sizes), -1)
    replicas = tuple(map(tuple, devices.tolist())) if devices.shape[1] > 1 else ()
    stages = pipelined.chain.stages(np.cumsum([0, *sizes[:-1]]), devices[:, 0], replicas=replicas)
    return pipelined.step_time_s(stages)


@cache
def _costs(*shape: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    from agent.lab.megatron import layer_costs

    return layer_costs(*shape)


def megatron_seconds(factors: Sequence[float] | FloatArray, row: RecordedRow) -> float:
    """Simulates a step of vTrain or NeuSight.

    Args:
        factors: factor of the time of all ops; seconds that the host needs at least for each op of a pass
            over a layer; further factor of the head and the loss.
    """
    shape = [row[name] for name in ("kind", "width", "heads", "length", "micro", "item_bytes")]
    sums, counts, parameters = _costs(*shape)
    found = factors[0] * sums
    found[2, :2] += (factors[2] - 1) * (found[2, :2] - found[1, :2])
    found[:, :2] = np.maximum(found[:, :2], factors[1] * counts[:, :2])
    at = [0, *[1] * (row["layers"] - 2), 2]
    kinds = (row["kind"],) * (row["stages"] * row["replicas"])
    cluster = calibrated("published", kinds, measured_links()["a100-nvswitch"], sharing="pair")
    sizes = [row["layers"] // row["stages"]] * row["stages"]
    sent_bytes = row["item_bytes"] * row["micro"] * row["length"] * row["width"]
    weight_bytes = row["item_bytes"] * parameters[at]
    return step_seconds(
        cluster, [found[at]] * len(kinds), weight_bytes, sent_bytes, sizes, row["microbatches"]
    )


def fitted_factors(rows: Sequence[RecordedRow]) -> tuple[float, ...]:
    """Fits factors to measured steps: those with the least mean |log(simulated / measured)|."""
    from scipy.optimize import minimize

    def loss(found: FloatArray) -> float:
        ratios = [megatron_seconds(found * [1, 1e-5, 1], row) / row["measured_s"] for row in rows]
        return float(np.abs(np.log(ratios)).mean())

    found = minimize(loss, (1.0, 5.0, 2.0), method="Nelder-Mead", options={"maxfev": 120}).x
    return tuple((found * [1, 1e-5, 1]).tolist())


def sailor_seconds(blocks: bool, plan: RecordedRow) -> float:
    """Simulates a plan of Sailor, whose devices are nodes that split each layer over their GPUs.

    Args:
        blocks: whether a node computes nothing while it sends or receives, as with `torch.distributed.send`.
    """
    profile = [row for row in read_table(DATA / "sailor_layers.csv.gz") if row["gpus"] == plan["gpus"]]
    of_kind = grouped(profile, lambda row: row["kind"])
    kinds, replicas = plan["nodes"].replace("/", "+").split("+"), plan["replicas"]
    is_slow = np.array([kind == BEHIND_SLOW for kind in kinds])
    links = np.where(is_slow[:, None] | is_slow, SLOW_BYTES_PER_S, FAST_BYTES_PER_S)
    sizes = [int(size) for size in str(plan["layers"]).split("/")]
    seconds = np.array([[[row[f"{part}_s"] for part in PASSES] for row in of_kind[kind]] for kind in kinds])
    for at in range(len(kinds) if blocks else 0):
        end = sum(sizes[: at // replicas + 1])
        for other, layer in ((at - replicas, end - sizes[at // replicas]), (at + replicas, end - 1)):
            if 0 <= other < len(kinds):
                seconds[at, layer, :2] += SENT_BYTES / links[at, other]
    devices = (
        Device(str(at), str(at), 1e13, 1e13, plan["gpus"] * KINDS[kind].bytes_per_s, 0.0)
        for at, kind in enumerate(kinds)
    )
    cluster = Cluster("sailor", tuple(devices), links, np.zeros_like(links), sharing="pair")
    weight_bytes = [4 * row["parameters"] for row in of_kind[kinds[0]]]
    sent_bytes = 0.0 if blocks else SENT_BYTES
    return step_seconds(cluster, seconds, weight_bytes, sent_bytes, sizes, plan["microbatches"])


def _group(row: RecordedRow) -> tuple[str, str, str]:
    is_fitted = (row["source"], row["stages"], row["replicas"]) == ("vtrain", 1, 2)
    stages = "2 to 4" if row["stages"] > 1 else "1, fitted to" if is_fitted else "1"
    return row["source"], row.get("costs", FITTED), stages


def published_rows(folder: Path, every: int) -> Iterator[list[PublishedRow]]:
    """Makes the rows of all sources, or of one of every so many steps."""
    megatron = read_table(DATA / "megatron.csv.gz")[::every]
    sailor = read_table(DATA / "sailor_plans.csv")[::every]
    factors = fitted_factors([row for row in megatron if "fitted" in _group(row)[2]])
    print("fitted: factor {:.4g}, seconds of the host {:.4g}, factor of the head {:.4g}".format(*factors))
    found = []
    for costs, rows, simulated in (
        (CALIBRATED, megatron, partial(megatron_seconds, AS_THEY_ARE)),
        (FITTED, [row for row in megatron if row["source"] == "vtrain"], partial(megatron_seconds, factors)),
        (OVERLAPPING, sailor, partial(sailor_seconds, False)),
        (BLOCKING, sailor, partial(sailor_seconds, True)),
    ):
        for row in followed(rows, costs):
            kept = {name: row[name] for name in ("case", "stages", "replicas", "microbatches", "measured_s")}
            found.append(PublishedRow(row["source"], costs, simulated_s=simulated(row), **kept))
    yield found


def published_tables(file: Path) -> Iterator[str]:
    """Yields errors by source, costs and stages, then by source and costs."""
    rows = [(_group(row), row) for row in read_table(file)]
    for by in (["source", "costs", "stages"], ["source", "costs"]):
        table = [[*by, "steps", "median ratio", *ERRORS, "Kendall's tau"]]
        for key in axis(group[: len(by)] for group, _ in rows):
            own = [row for group, row in rows if group[: len(by)] == key]
            ratio = np.median([row["simulated_s"] / row["measured_s"] for row in own])
            table.append([*key, str(len(own)), f"{ratio:.3f}", *step_cells(own, "simulated_s")])
        yield markdown_table(table)
