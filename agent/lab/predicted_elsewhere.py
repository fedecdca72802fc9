"""Predicts three steps that others simulated and measured: SimAI's issue 166, and two plans of Mist.

- SimAI: Megatron, GPT of 12 layers, width 768, 8 heads, 8 sequences of 2,048 words in fp16 on one V100S; the
  attention between its products runs again before its backward pass.
- Mist: GPT of 24 layers, width 2,048, 16 heads, sequences of 2,048 words in fp16, without flash attention or
  dropout, on two L4 with clocks set to half of their maximum; 32 sequences a step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from agent.lab.measured_memory import PredictedRow, pipeline_graph
from envs.cluster.cluster import Cluster, Device
from envs.cluster.kinds import measured_links
from envs.cluster.presets import calibrated
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.capture.capture import capture
from graphs.op_graph import OpGraph
from graphs.precision import with_precision
from graphs.system.array_types import FloatArray

FUSED = ("aten.add", "aten.mul")
"""Ops between the products of attention that Megatron's softmax does."""
P2P_BYTES_PER_S = 4.5e9
"""Bandwidth between two L4, from the same configuration."""


def gpt(layers: int, width: int, heads: int, micro: int, precision: str, dropout: float) -> OpGraph:
    """Captures the step of GPT-2 with attention of separate ops."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {"attn_implementation": "eager"}
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=2048, vocab_size=50_304, use_cache=False,
        **settings, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    with torch.device("meta"):
        model = GPT2LMHeadModel(config).train()
    words = torch.zeros(micro, 2048, dtype=torch.long, device="meta")
    return with_precision(capture(model, {"input_ids": words, "labels": words}), precision)


def on_one(graph: OpGraph, kind: str) -> Problem:
    """Places a graph on a board with calibrated costs."""
    return Problem(graph, calibrated("one", (kind,), measured_links()["pcie3"]))


def simai_seconds(fused: bool) -> float:
    """Predicts the step on one V100 of 32 GB."""
    problem = on_one(gpt(12, 768, 8, 8, "amp-fp16", 0.1), "v100-pcie-32gb")
    graph, seconds = problem.graph, problem.op_seconds[:, 0]
    core = np.array([".attn/" in name for name in graph.op_names])
    forward = np.array([phase == "forward" for phase in graph.phases])
    counted = ~(core & np.isin(graph.op_types, FUSED)) if fused else np.ones(graph.n_ops, dtype=bool)
    return float(seconds[counted].sum() + seconds[counted & core & forward].sum())


def layer_seconds(micro: int) -> tuple[FloatArray, Problem]:
    """Returns forward, backward and update seconds of the layers of Mist's model, (26, 3)."""
    problem = on_one(gpt(24, 2048, 16, micro, "bf16", 0.0), "l4")
    chain = PipelinedProblem(problem, Pipeline("1f1b", 1)).chain
    first = [0]
    for layer in range(24):
        own = [
            op for op, name in enumerate(problem.graph.op_names) if name.startswith(f"transformer.h.{layer}.")
        ]
        first.append(int(chain.piece_of[own].min()))
    head = [op for op, name in enumerate(problem.graph.op_names) if name.startswith("transformer.ln_f/")]
    first.append(int(chain.piece_of[head].min()))
    ends = [*first[1:], chain.n_pieces]
    cells = [chain.seconds[:, begin:end, 0].sum(axis=1) for begin, end in zip(first, ends, strict=True)]
    return np.array(cells), problem


def mist_data_parallel() -> float:
    """Predicts two replicas of two micro batches of 8, whose 24 layers all run again."""
    seconds, problem = layer_seconds(8)
    passes = seconds[:, :2].sum() + seconds[1:25, 0].sum()
    weights = sum(
        float(size)
        for size, maker in zip(problem.graph.tensor_bytes, problem.graph.tensor_producer, strict=True)
        if problem.graph.op_types[maker] == "parameter"
    )
    return float(2 * passes + seconds[:, 2].sum() + weights / P2P_BYTES_PER_S)


def mist_pipeline() -> float:
    """Predicts two stages of 12 layers and 16 micro batches of 2; five layers of the first run again."""
    own, _ = layer_seconds(2)
    own[1:6, 1] += own[1:6, 0]
    sent_bytes = 2.0 * 2 * 2048 * 2048
    sizes = [(1.0, 1.0, 1.0)] * len(own)
    graph = pipeline_graph(sizes, 1, np.array([own, own]), sent_bytes)
    devices = tuple(Device(str(at), f"node{at}", 1e13, 1e13, 1e13, 0.0) for at in range(2))
    links = np.full((2, 2), P2P_BYTES_PER_S)
    cluster = Cluster("l4", devices, links, np.zeros_like(links), sharing="pair")
    pipelined = PipelinedProblem(Problem(graph, cluster), Pipeline("1f1b", 16))
    return pipelined.simulate(pipelined.chain.stages(np.array([0, 13]), np.arange(2))).total_s


def elsewhere() -> list[PredictedRow]:
    """Makes the rows of what others measured."""
    simai = PredictedRow("V100S", "GPT-126M", "SimAI issue 166", 1, 1, 8, 1, "", "", 0.71, 0.0)
    mist = PredictedRow("L4", "GPT-1.3B", "Mist, data parallel", 1, 2, 8, 2, "", "", 11.329, 0.0)
    return [
        replace(simai, what="theirs", predicted=6.042),
        replace(simai, what="separate ops", predicted=simai_seconds(False)),
        replace(simai, what="softmax fused", predicted=simai_seconds(True)),
        replace(mist, what="theirs", predicted=10.659),
        replace(mist, what="separate ops", predicted=mist_data_parallel()),
        replace(mist, plan="Mist, pipeline", stages=2, replicas=1, micro=2, microbatches=16, what="theirs",
                measured=9.9345, predicted=9.269),
        replace(mist, plan="Mist, pipeline", stages=2, replicas=1, micro=2, microbatches=16,
                what="separate ops", measured=9.9345, predicted=mist_pipeline()),
    ]  # fmt: skip
