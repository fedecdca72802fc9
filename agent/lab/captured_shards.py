"""OPT-350M and GPT-Neo 2.7B as Sailor ran them: the shard of one GPU of a tensor-parallel node, captured.

As in Megatron, `n` GPUs each have an nth of the heads, of the inner features of the MLP and of the words;
norms, position embeddings and what goes between layers are whole on each. All-reduces are left out: they are
in place. OPT has norms before its blocks and embeddings as wide as its layers, and GPT-Neo has no head: its
loss is taken over its width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from envs.cluster.presets import H100, uniform
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.problem import Problem
from graphs.capture.capture import capture
from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray

VOCABULARY, LENGTH = 50_304, 2048
"""Words of GPT-2, padded to a multiple of 128; Megatron pads to 128 times the GPUs."""
GPU_BYTES_PER_S = 22.93e9


class Hidden(nn.Module):
    """A model whose loss is taken over its width."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        """Returns the loss."""
        states = self.model(words).last_hidden_state
        return functional.cross_entropy(states.flatten(0, 1), words.flatten())


def divided(linear: Any, outputs: int = 1, inputs: int = 1) -> None:
    """Keeps an nth of the outputs or of the inputs of a linear layer."""
    rows, columns = linear.weight.shape
    weight = torch.empty(rows // outputs, columns // inputs, device="meta")
    linear.weight = nn.Parameter(weight)
    if linear.bias is not None:
        linear.bias = nn.Parameter(torch.empty(len(weight), device="meta"))


def shard(name: str, gpus: int) -> nn.Module:
    """Makes the shard of a model on one of `gpus` GPUs, on the meta device."""
    from transformers import GPTNeoConfig, GPTNeoModel, OPTConfig, OPTForCausalLM

    words = -(-VOCABULARY // (128 * gpus)) * 128
    shared: dict[str, Any] = {"vocab_size": words, "max_position_embeddings": LENGTH, "use_cache": False}
    shared |= {"tie_word_embeddings": False, "attn_implementation": "eager"}
    with torch.device("meta"):
        if name == "OPT-350":
            config: Any = OPTConfig(
                hidden_size=1024, word_embed_proj_dim=1024, ffn_dim=4096, num_hidden_layers=24,
                num_attention_heads=16, dropout=0.0, attention_dropout=0.0, **shared,
            )  # fmt: skip
            model: Any = OPTForCausalLM(config)
            blocks = [(b.self_attn, b.self_attn.out_proj, b.fc1, b.fc2) for b in model.model.decoder.layers]
        else:
            kinds: Any = [[["global", "local"], 16]]
            config = GPTNeoConfig(
                hidden_size=2560, num_layers=32, num_heads=32, attention_types=kinds,
                activation_function="gelu", **shared,
            )  # fmt: skip
            model = Hidden(GPTNeoModel(config))
            own = [b.attn.attention for b in model.model.h]
            mlps = [b.mlp for b in model.model.h]
            blocks = [(a, a.out_proj, m.c_fc, m.c_proj) for a, m in zip(own, mlps, strict=True)]
    for attention, out, first, second in blocks:
        attention.num_heads //= gpus
        attention.embed_dim //= gpus
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, first):
            divided(linear, outputs=gpus)
        for linear in (out, second):
            divided(linear, inputs=gpus)
    return model.train()  # type: ignore[no-any-return]


def with_small_norms(graph: OpGraph) -> OpGraph:
    """Lets backward passes of norms read the result of the norm in place of its input.

    Megatron-DeepSpeed asks apex for this by default (`mem_efficient_ln`).
    """
    ptr, items = graph.consumers.ptr, graph.consumers.items
    readers = [set(items[ptr[at] : ptr[at + 1]].tolist()) for at in range(graph.n_tensors)]
    op_of = {name: op for op, name in enumerate(graph.op_names)}
    for name, backward in op_of.items():
        forward = op_of.get(name.removeprefix("gradients/").removesuffix("_backward"))
        if forward is None or not name.endswith("native_layer_norm_backward"):
            continue
        for tensor, own in enumerate(readers):
            if {forward, backward} <= own and not graph.is_source[graph.tensor_producer[tensor]]:
                own.remove(backward)
        readers[int(np.flatnonzero(graph.tensor_producer == forward)[0])].add(backward)
    rows = [sorted(own) for own in readers]
    return replace(graph, consumers=Csr(np.cumsum([0, *map(len, rows)]), np.concatenate(rows)))


@cache
def captured(name: str, gpus: int, micro: int, small_norms: bool) -> OpGraph:
    """Captures the step of a shard on a micro batch."""
    words = torch.zeros(micro, LENGTH, dtype=torch.long, device="meta")
    if name == "OPT-350":
        graph = capture(shard(name, gpus), {"input_ids": words, "labels": words}, name=name)
        return with_small_norms(graph) if small_norms else graph
    return capture(shard(name, gpus), (words,), name=name)


def layers_of(graph: OpGraph) -> IntArray:
    """Returns the layer of each op: 0 = embeddings, then the blocks, then the head; int64 (n_ops,)."""
    found = np.zeros(graph.n_ops, dtype=np.int64)
    last = 0
    for op, name in enumerate(graph.op_names):
        head, _, rest = name.replace(".h.", ".layers.").partition(".layers.")
        number = rest.split(".")[0].split("/")[0]
        if number.isdigit() and not head.startswith(("gradients", "adam")):
            last = 1 + int(number)
        elif last and graph.phases[op] == "forward":
            last = -1
        found[op] = last
    return np.where(found < 0, found.max() + 1, found)


def pipelined(plan: Any, microbatches: int, small_norms: bool) -> tuple[PipelinedProblem, Stages]:
    """Makes the pipeline of a plan from captured shards."""
    graph, n = captured(plan["model"], plan["gpus"], plan["micro"], small_norms), len(plan["layers"])
    cluster = uniform("sailor", H100, n, plan["gpus"] * GPU_BYTES_PER_S, sharing="pair")
    found = PipelinedProblem(Problem(graph, cluster), Pipeline("1f1b", microbatches))
    layer, piece = layers_of(graph), found.chain.piece_of
    runs = np.array([phase == "forward" for phase in graph.phases]) & ~graph.is_source
    begins = [0, *np.cumsum(plan["layers"])[:-1]]
    first = [int(piece[runs & (layer >= begin)].min()) for begin in begins]
    return found, found.chain.stages(np.array(first), np.arange(n))
