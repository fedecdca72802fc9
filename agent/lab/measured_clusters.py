"""Steps that others measured on several GPUs, and their predictions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from agent.lab import pivot
from agent.lab.pivot import ExperimentError, Key, Pivot, Row, Rows, grouped, read_table
from envs.cluster.cluster import Cluster
from envs.cluster.host import EAGER, with_host
from envs.cluster.presets import get_cluster
from envs.pipeline.chain import chain_of
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.replicas import on_groups, pipelined_of
from envs.pipeline.simulate import PipelineTime
from envs.pipeline.stages import Stages
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray
from graphs.system.progress import followed

MEASURED = Path(__file__).parent / "results"
"""Folder of what others measured: `measured_clusters_*.csv`."""
BROKEN = 0.5
"""Share of the tokens a second of a comparable run below which a run counts as broken."""
GPUS, GIB = 8, 2.0**30
"""GPUs of a node; bytes of the unit of memory."""
WEIGHT_SHARE = 2 / 18
"""Share of the weights in bf16 in what is kept of a parameter, with gradients and three copies in fp32."""
TIME, MEMORY = ("predicted_s", "measured_s"), ("predicted_gib", "measured_gib")
"""Columns of predictions and measurements."""
LAYER = re.compile(r"(?:^|\.)(?:layers?|h)\.(\d+)[./]")
"""Number of the layer in the name of an op."""


@dataclass(frozen=True)
class PublishedRow:
    """A step that others measured, and its prediction.

    Attributes:
        zero: 1 if replicas divide the optimizer's states.
        mbs, microbatches: sequences of a microbatch, and microbatches of a replica in a step.
        use: `used`, `broken`, or `failed`, nearly always for want of memory.
        measured_s, predicted_s: seconds of a step, or of a word that is generated.
        measured_gib, predicted_gib: peak memory of the GPU that was measured; 0 = of none.
        fits: all GPUs are predicted to have the memory.
    """

    source: str
    model: str
    nodes: int
    dp: int
    pp: int
    zero: int
    mbs: int
    microbatches: int
    use: str
    measured_s: float
    predicted_s: float
    measured_gib: float
    predicted_gib: float
    fits: bool


def is_broken(run: Row, runs: Rows) -> bool:
    """Says whether a run of the sweep is left out; the rule was stated before any prediction was looked at.

    All runs of a model have the same batch. So a run is broken if it has less than half of the tokens a
    second of each GPU of another run of the same model and number of stages on as many nodes or more, or less
    than half of all tokens a second of such a run on fewer nodes: more nodes may gain little, but lose none.

    Args:
        runs: rows of the sweep; those that failed have no rates.
    """
    for other in runs:
        if (other["model"], other["pp"]) == (run["model"], run["pp"]):
            rate = "tokens_s_gpu" if other["nodes"] >= run["nodes"] else "tokens_s"
            if run[rate] < BROKEN * (other[rate] or 0.0):
                return True
    return False


@dataclass(frozen=True)
class PublishedRuns:
    """Predictions of what others measured.

    Attributes:
        graphs: names of models; none for all.
    """

    graphs: tuple[str, ...] = ()

    def rows(self, folder: Path) -> Rows:
        """Makes the rows.

        Raises:
            ExperimentError: no model has such a name.
        """
        models = import_module("agent.lab.published_models")  # loads torch
        sweep, tests, maps = (
            read_table(MEASURED / f"measured_clusters_{name}.csv")
            for name in ("nanotron", "megatron", "accelerate")
        )
        makers: list[tuple[str, Callable[[], PublishedRow]]] = [
            *((run["model"], partial(_of_sweep, models, run, sweep)) for run in sweep),
            *((run["family"], partial(_of_test, models, run)) for run in tests if run["family"] != "hybrid"),
            *((run["model"], partial(_of_map, models, run)) for run in maps if not run["cpu_gb"]),
        ]
        chosen = [make for name, make in makers if name in (self.graphs or [name])]
        if not chosen:
            names = ", ".join(dict.fromkeys(name for name, _ in makers))
            raise ExperimentError(f"no model is named '{self.graphs[0]}'; use some of {names}")
        return [asdict(make()) for make in followed(chosen, "steps")]


def simulated(
    graph: OpGraph, cluster: Cluster, pipeline: Pipeline, rank_of_layers: Sequence[int]
) -> tuple[PipelineTime, Stages]:
    """Simulates replicas of a pipeline; ranks are as far apart as there are replicas, as both projects do.

    Args:
        rank_of_layers: stage of each layer; what is before them is on the first, what is behind on the last.

    Returns:
        The step, and its stages in the first replica.
    """
    dp, n_layers, block, first = int(pipeline.replicas), len(rank_of_layers), 0, dict[int, int]()
    n_ranks = cluster.n_devices // dp
    chain = chain_of(Problem(graph, cluster.first(n_ranks)))
    stage_of = [0, *rank_of_layers, n_ranks * pipeline.stages_per_device - 1]
    for op in np.flatnonzero(~graph.is_source & (np.array(graph.phases) == "forward")):
        layer = LAYER.search(graph.op_names[op])
        block = 1 + int(layer[1]) if layer else n_layers + 1 if block == n_layers else block
        first.setdefault(stage_of[block], int(chain.piece_of[op]))
    n_ranks = len(first) // pipeline.stages_per_device
    stages = chain.stages(np.array([*first.values()]), np.arange(len(first)) % n_ranks)
    if dp > 1:
        stages = on_groups(stages, tuple(tuple(range(first, n_ranks * dp, dp)) for first in range(dp)))
    return pipelined_of(Problem(graph, cluster), pipeline).simulate(stages), stages


def _of_sweep(models: Any, run: Row, sweep: Rows) -> PublishedRow:
    """Predicts a configuration of nanotron's sweep; with replicas, torch's DDP keeps buckets like weights."""
    dp, pp, mbs, count = run["dp"], run["pp"], run["mbs"], run["grad_acc"]
    sizes = models.MODELS[run["model"]]
    graph = models.nanotron(sizes, mbs)
    cluster = get_cluster(f"{run['nodes']}x8xh100-sxm5" if run["nodes"] > 1 else "8xh100-sxm5")
    pipeline = Pipeline("1f1b", dp * count, replicas=dp, shard_optimizer=dp > 1 and run["zero"] == 1)
    time, stages = simulated(graph, cluster, pipeline, models.rank_of_layers(sizes, pp))
    is_weight = np.array(graph.op_types) == "parameter"
    weight_bytes = np.bincount(
        stages.device_of[is_weight], graph.resident_bytes[is_weight], cluster.n_devices
    )
    peak_bytes = time.peak_bytes + WEIGHT_SHARE * weight_bytes * (dp > 1)
    failed = run["tokens_s"] is None
    return PublishedRow(
        *("nanotron", run["model"], run["nodes"], dp, pp, run["zero"], mbs, count),
        use="failed" if failed else "broken" if is_broken(run, sweep) else "used",
        measured_s=0.0 if failed else dp * mbs * count * models.LENGTH / run["tokens_s"],
        predicted_s=time.total_s,
        measured_gib=run["gpu_memory_gb"] or 0.0,
        predicted_gib=float(peak_bytes[0]) / GIB,
        fits=bool((peak_bytes <= cluster.memory_bytes).all()),
    )


def _of_test(models: Any, run: Row) -> PublishedRow:
    """Predicts a test of Megatron, whose last stage says its memory."""
    pp, layers, dp = run["pp"], run["layers"], GPUS // run["pp"]
    parts = layers // pp // (run["vp_layers"] or layers // pp)
    columns = ("family", "hidden", "layers", "heads", "groups", "seq", "mbs")
    graph = models.megatron(*(run[column] for column in columns))
    pipeline = Pipeline(
        f"interleaved-1f1b:{parts}" if parts > 1 else "1f1b",
        run["gbs"] // run["mbs"],
        replicas=dp,
        shard_optimizer=run["dist_opt"] is True,
    )
    ranks = [layer * pp * parts // layers for layer in range(layers)]
    time, stages = simulated(graph, with_host(get_cluster("8xa100-sxm4"), EAGER), pipeline, ranks)
    return PublishedRow(
        *("megatron", f"{run['test']}, {run['hardware'].partition('_')[0]}", 1, dp, pp),
        *(int(pipeline.shard_optimizer), run["mbs"], pipeline.microbatches // dp, "used"),
        measured_s=run["iteration_s_median"],
        predicted_s=time.total_s,
        measured_gib=run["max_allocated_bytes"] / GIB,
        predicted_gib=float(time.peak_bytes[stages.devices[-1]]) / GIB,
        fits=time.fits,
    )


def _of_map(models: Any, run: Row) -> PublishedRow:
    """Predicts a word that is generated where a device map of accelerate has the weights."""
    graph = models.decoding(run["model"], run["precision"])
    held = np.cumsum(graph.resident_bytes)
    is_second = held > held[-1] - 1e9 * run["gpu1_gb"]
    first_of_unit = np.unique(graph.unit_of, return_index=True)[1]
    device_of = is_second[first_of_unit[graph.unit_of]].astype(np.int64)
    step = simulate_problem(Problem(graph, with_host(get_cluster("2xtitan-rtx"), EAGER)), device_of)
    return PublishedRow(
        *("accelerate", f"{run['model']}, {run['precision']}", 1, 1, 1, 0, 1, 1, "used"),
        measured_s=run["s_per_token"],
        predicted_s=step.total_s,
        measured_gib=run["gpu0_gb"] * 1e9 / GIB,
        predicted_gib=float(step.peak_bytes[0]) / GIB,
        fits=step.fits,
    )


def nodes_of(row: Row) -> str:
    """Names the number of nodes, in classes."""
    return "1" if row["nodes"] == 1 else "2 to 8" if row["nodes"] <= 8 else "16 to 64"


def _compared(rows: Rows) -> list[tuple[FloatArray, FloatArray]]:
    """Collects predicted and measured seconds a sequence, where a model has three and more on some nodes."""
    seconds = []
    for group in grouped(rows, lambda row: (row["model"], row["nodes"])).values():
        sequences = np.array([row["dp"] * row["mbs"] * row["microbatches"] for row in group])
        predicted, measured = (np.array([row[column] for row in group]) / sequences for column in TIME)
        if len(group) >= 3:
            seconds.append((predicted, measured))
    return seconds


def rank_correlation(rows: Rows) -> str:
    """Formats the mean of Kendall's tau among the runs of each model and number of nodes."""
    from scipy.stats import kendalltau

    taus = [float(kendalltau(*pair).statistic) for pair in _compared(rows)]
    return f"{np.mean(taus):.3f}" if taus else ""


def chosen_behind(rows: Rows) -> str:
    """Formats how much longer the run with the shortest prediction took than the best, of each such group."""
    behind = [measured[np.argmin(predicted)] / measured.min() - 1 for predicted, measured in _compared(rows)]
    return f"{np.mean(behind):.1%}, at most {np.max(behind):.1%}" if behind else ""


ERRORS = [
    ("steps", pivot.count),
    ("time ratio", pivot.mean(*TIME)),
    ("median error", pivot.error(*TIME, 0.5)),
    ("90th percentile", pivot.error(*TIME, 0.9)),
    ("memory ratio", pivot.mean(*MEMORY)),
    ("median error", pivot.error(*MEMORY, 0.5)),
    ("90th percentile", pivot.error(*MEMORY, 0.9)),
    ("Kendall's tau", rank_correlation),
    ("chosen behind the best", chosen_behind),
]
"""Cells of predicted over measured."""


def _errors(index: Mapping[str, Key]) -> Pivot:
    """Makes a table of the errors of the sweep."""
    return Pivot(index, ERRORS, lambda row: (row["source"], row["use"]) == ("nanotron", "used"), total="all")


TABLES = [
    _errors({"nodes": nodes_of, "model": "model"}),
    Pivot(
        {"source": "source", "model": "model", "dp": "dp", "pp": "pp"},
        [(head, pivot.mean(head)) for head in (*TIME, *MEMORY)],
        lambda row: row["source"] != "nanotron",
    ),
    Pivot(
        {"runs": "use"},
        [
            ("predicted to fit", pivot.only(pivot.count, fits=True)),
            ("predicted out of memory", pivot.only(pivot.count, fits=False)),
        ],
        lambda row: row["source"] == "nanotron",
    ),
    _errors({"model": "model", "nodes": "nodes"}),
    *(_errors({column: column}) for column in ("dp", "pp", "zero", "mbs")),
]
"""Tables of the page, and those of parts of the sweep."""
