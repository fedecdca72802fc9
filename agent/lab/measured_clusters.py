"""Steps that others measured on several GPUs, and their predictions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agent.lab.pivot import ExperimentError, Row, Rows, read_table
from envs.cluster.cluster import Cluster
from envs.cluster.host import EAGER, with_host
from envs.cluster.presets import get_cluster
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.replicas import on_groups, pipelined_of
from envs.pipeline.simulate import PipelineTime
from envs.pipeline.stages import Stages
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.io.graph_files import read_graphs, write_graphs
from graphs.op_graph import OpGraph
from graphs.system.progress import followed

RESULTS = Path(__file__).parent / "results"
"""Folder of what others measured: `measured_clusters_*.csv`."""
BROKEN = 0.5
"""Share of the tokens a second of a comparable run below which a run counts as broken."""
GPUS, LENGTH, GIB = 8, 4096, 2.0**30
"""GPUs of a node; words of a sequence of the sweep; bytes of the unit of memory."""
WEIGHT_SHARE = 2 / 18
"""Share of the weights in bf16 in what is kept of a parameter, with gradients and three copies in fp32."""
LAYER = re.compile(r"(?:^|\.)(?:layers?|h)\.(\d+)[./]")
"""Number of the layer in the name of an op."""
PROMPT = 32
"""Words before the one that is generated; not published."""


@dataclass(frozen=True)
class PublishedRow:
    """A step that others measured, and its prediction.

    Attributes:
        zero: whether replicas divide the optimizer's states.
        mbs, microbatches: sequences of a microbatch, and microbatches of a replica in a step.
        use: `used`, `broken`, or `failed`, nearly always for want of memory.
        measured_s, predicted_s: seconds of a step, or of a word that is generated.
        measured_gib, predicted_gib: peak memory of the GPU that was measured; 0 = of none.
        fits: whether all GPUs are predicted to have the memory.
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

    All runs of a model have the same batch. So a run is broken if it has less than half of the tokens a second
    of each GPU of another run of the same model and number of stages on as many nodes or more, or less than
    half of all tokens a second of such a run on fewer nodes: more nodes may gain little, but do not halve.

    Args:
        runs: all that ran, with those columns of the sweep.
    """
    for other in runs:
        if (other["model"], other["pp"]) == (run["model"], run["pp"]):
            rate = "tokens_s_gpu" if other["nodes"] >= run["nodes"] else "tokens_s"
            if run[rate] < BROKEN * other[rate]:
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
        """Makes the rows; the folder keeps the captured graphs.

        Raises:
            ExperimentError: no model has such a name.
        """
        folder = folder / "graphs"
        folder.mkdir(parents=True, exist_ok=True)
        sweep, tests, maps = (
            read_table(RESULTS / f"measured_clusters_{name}.csv")
            for name in ("nanotron", "megatron", "accelerate")
        )
        ran = [run for run in sweep if run["tokens_s"] is not None]
        makers: list[tuple[str, Callable[[], PublishedRow]]] = [
            *((run["model"], partial(_of_sweep, folder, run, ran)) for run in sweep),
            *(
                (run["test"], partial(_of_test, folder, run))
                for run in tests
                if run["family"] in ("bert", "gpt")
            ),
            *((run["model"], partial(_of_map, folder, run)) for run in maps if not run["cpu_gb"]),
        ]
        chosen = [make for name, make in makers if name in (self.graphs or [name])]
        if not chosen:
            names = ", ".join(dict.fromkeys(name for name, _ in makers))
            raise ExperimentError(f"no model is named {self.graphs[0]!r}; use some of {names}")
        return [asdict(make()) for make in followed(chosen, "steps")]


def _kept(file: Path, make: Callable[[], OpGraph]) -> OpGraph:
    """Makes a graph, or reads it if it was made before."""
    if not file.exists():
        write_graphs(file, [make()])
    return read_graphs(file)[0]


def _simulated(
    graph: OpGraph, cluster: Cluster, pipeline: Pipeline, rank_of_layers: Sequence[int]
) -> tuple[PipelineTime, Stages]:
    """Simulates replicas of a pipeline whose ranks are as far apart as there are replicas, as both projects do.

    Args:
        rank_of_layers: stage of each layer; what is before them is on the first, what is behind on the last.

    Returns:
        The step, and its stages in the first replica.
    """
    dp, block, first = int(pipeline.replicas), 0, dict[int, int]()
    step = pipelined_of(Problem(graph, cluster), pipeline)
    n_layers = len(rank_of_layers)
    stage_of = [0, *rank_of_layers, cluster.n_devices // dp * pipeline.stages_per_device - 1]
    for op in np.flatnonzero(~graph.is_source & (np.array(graph.phases) == "forward")):
        layer = LAYER.search(graph.op_names[op])
        block = 1 + int(layer[1]) if layer else n_layers + 1 if block == n_layers else block
        first.setdefault(stage_of[block], int(step.chain.piece_of[op]))
    n_ranks = len(first) // pipeline.stages_per_device
    ranks = np.arange(len(first)) % n_ranks
    stages = step.chain.stages(np.array([*first.values()]), ranks)
    if dp > 1:
        stages = on_groups(stages, tuple(tuple(range(at, n_ranks * dp, dp)) for at in range(dp)))
    return step.simulate(stages), stages


def _of_sweep(folder: Path, run: Row, ran: Rows) -> PublishedRow:
    """Predicts a configuration of nanotron's sweep.

    A tied tensor is counted on both stages that hold it. With replicas, torch's DDP keeps buckets as large as
    the weights.
    """
    from agent.lab.nanotron import MODELS, captured, rank_of_layers

    dp, pp, mbs = run["dp"], run["pp"], run["mbs"]
    sizes = MODELS[run["model"]]
    sizes = sizes._replace(tied=sizes.tied and pp == 1)
    file = folder / f"{run['model']}{'-tied' * sizes.tied}-{mbs}.jsonl.gz"
    graph = _kept(file, lambda: captured(sizes, mbs))
    cluster = get_cluster(f"{run['nodes']}x8xh100-sxm5" if run["nodes"] > 1 else "8xh100-sxm5")
    pipeline = Pipeline(
        "1f1b", dp * run["grad_acc"], replicas=dp, shard_optimizer=dp > 1 and run["zero"] == 1
    )
    time, stages = _simulated(graph, cluster, pipeline, rank_of_layers(sizes, pp))
    is_weight = np.array([kind == "parameter" for kind in graph.op_types])
    weights = np.bincount(stages.device_of[is_weight], graph.resident_bytes[is_weight], cluster.n_devices)
    peak_bytes = time.peak_bytes + WEIGHT_SHARE * weights * (dp > 1)
    failed = run["tokens_s"] is None
    return PublishedRow(
        "nanotron", run["model"], run["nodes"], dp, pp, run["zero"], mbs, run["grad_acc"],
        use="failed" if failed else "broken" if is_broken(run, ran) else "used",
        measured_s=0.0 if failed else dp * mbs * run["grad_acc"] * LENGTH / run["tokens_s"],
        predicted_s=time.total_s,
        measured_gib=run["gpu_memory_gb"] or 0.0,
        predicted_gib=peak_bytes[0] / GIB,
        fits=bool((peak_bytes <= cluster.memory_bytes).all()),
    )  # fmt: skip


def _of_test(folder: Path, run: Row) -> PublishedRow:
    """Predicts a test of Megatron, whose last stage says its memory."""
    dp, parts = GPUS // run["pp"], run["layers"] // run["pp"] // (run["vp_layers"] or run["layers"])
    graph = _kept(folder / f"megatron-{run['family']}.jsonl.gz", lambda: _megatron(run))
    schedule = f"interleaved-1f1b:{parts}" if parts else "1f1b"
    n_stages = run["pp"] * max(parts, 1)
    ranks = [layer * n_stages // run["layers"] for layer in range(run["layers"])]
    pipeline = Pipeline(
        schedule, run["gbs"] // run["mbs"], replicas=dp, shard_optimizer=run["dist_opt"] is True
    )
    cluster = with_host(get_cluster("8xa100-sxm4"), EAGER)
    time, stages = _simulated(graph, cluster, pipeline, ranks)
    return PublishedRow(
        "megatron", f"{run['test']}, {run['hardware'].partition('_')[0]}", 1, dp, run["pp"],
        int(pipeline.shard_optimizer), run["mbs"], run["gbs"] // run["mbs"] // dp, "used",
        measured_s=run["iteration_s_median"],
        predicted_s=time.total_s,
        measured_gib=run["max_allocated_bytes"] / GIB,
        predicted_gib=float(time.peak_bytes[stages.devices[-1]]) / GIB,
        fits=time.fits,
    )  # fmt: skip


def _megatron(run: Row) -> OpGraph:
    """Captures the step of a microbatch of a test; norms, dropout and positions are those of transformers."""
    from torch import bfloat16, device, long, zeros
    from transformers import BertConfig, BertForMaskedLM, Starcoder2Config, Starcoder2ForCausalLM

    from graphs.capture.capture import capture

    sizes = {
        "hidden_size": run["hidden"], "num_hidden_layers": run["layers"],
        "num_attention_heads": run["heads"], "intermediate_size": 4 * run["hidden"],
        "max_position_embeddings": run["seq"],
    }  # fmt: skip
    with device("meta"):
        if run["family"] == "bert":
            bert = BertConfig(
                vocab_size=30_592, tie_word_embeddings=False, attn_implementation="eager", **sizes
            )
            model: Any = BertForMaskedLM(bert)
        else:
            model = Starcoder2ForCausalLM(
                Starcoder2Config(
                    vocab_size=131_200, num_key_value_heads=run["groups"], tie_word_embeddings=False,
                    use_cache=False, residual_dropout=0.1, **sizes,
                )
            )  # fmt: skip
        words = zeros(run["mbs"], run["seq"], dtype=long)
    inputs = {"input_ids": words, "labels": words}
    kept = {"master_weights": "fp32", "gradient_dtype": "fp32"}
    return capture(model.to(bfloat16), inputs, optimizer="adamw", **kept)


def _of_map(folder: Path, run: Row) -> PublishedRow:
    """Predicts a word that is generated where a device map of accelerate has the weights."""
    graph = _kept(folder / f"{run['model']}-{run['precision']}.jsonl.gz", lambda: _decoding(run))
    held = np.cumsum(graph.resident_bytes)
    units = graph.unit_of
    on_second = (
        held > held[-1] - 1e9 * run["gpu1_gb"] if run["gpu1_gb"] else np.zeros(graph.n_ops, dtype=bool)
    )
    first = np.unique(units, return_index=True)[1]
    device_of = on_second[first[units]].astype(np.int64)
    step = simulate_problem(Problem(graph, with_host(get_cluster("2xtitan-rtx"), EAGER)), device_of)
    return PublishedRow(
        "accelerate", f"{run['model']}, {run['precision']}", 1, 1, 1, 0, 1, 1, "used",
        measured_s=run["s_per_token"],
        predicted_s=step.total_s,
        measured_gib=run["gpu0_gb"] * 1e9 / GIB,
        predicted_gib=float(step.peak_bytes[0]) / GIB,
        fits=bool((step.peak_bytes <= get_cluster("2xtitan-rtx").memory_bytes).all()),
    )  # fmt: skip


def _decoding(run: Row) -> OpGraph:
    """Captures the step of one word after a prompt."""
    import transformers
    from torch import device, float16, float32, long, zeros

    from graphs.capture.decoding import capture_decoding

    kinds: Mapping[str, tuple[str, Mapping[str, object]]] = {
        "gpt-j-6b": ("GPTJ", {}),
        "gpt-neox-20b": ("GPTNeoX", {}),
        "t0pp-11b": (
            "T5",
            {
                "d_model": 4096, "d_kv": 64, "d_ff": 10_240, "num_layers": 24, "num_heads": 64,
                "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
            },
        ),
    }  # fmt: skip
    kind, sizes = kinds[run["model"]]
    head = "ForConditionalGeneration" if kind == "T5" else "ForCausalLM"
    with device("meta"):
        config = getattr(transformers, f"{kind}Config")(**sizes)
        model = getattr(transformers, f"{kind}{head}")(config)
        words = zeros(1, PROMPT, dtype=long)
    model = model.to(float16 if run["precision"] == "fp16" else float32)
    return capture_decoding(model, {"input_ids": words}, PROMPT).graph
