"""Models whose steps others measured.

Those of nanotron are as its benchmark of December 2024 ran them: norms are fused, queries, keys and values
are one product, as gate and up are, and logits are cast to fp32. Those of Megatron and accelerate are the
nearest ones of transformers.

Source: huggingface/nanotron (Apache-2.0), `models/llama.py`, `models/base.py` and
`parallel/tensor_parallel/functional.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from graphs.capture.capture import capture
from graphs.capture.decoding import capture_decoding
from graphs.op_graph import OpGraph

LENGTH, WORDS, HEADS = 4096, 131_072, 32
"""Words of a sequence and of the vocabulary, and heads of the models of nanotron."""
PROMPT = 32
"""Words before the one that accelerate's models generate; not published."""
T5_SIZES: dict[str, Any] = {"d_model": 4096, "d_ff": 10_240, "num_layers": 24, "num_heads": 64}
T5_SIZES |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


class Sizes(NamedTuple):
    """Sizes of a model of nanotron; keys and values have as many heads as queries."""

    hidden: int
    layers: int
    inner: int
    tied: bool


MODELS = {"1B": Sizes(2048, 16, 8192, True), "8B": Sizes(4096, 32, 14336, False)}


class CrossEntropy(torch.autograd.Function):
    """The loss of each word, (n,), by separate ops in fp32, which keeps the softmax for its backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, words: Tensor) -> Tensor:
        picked, most = logits.gather(1, words[:, None]), logits.amax(-1, keepdim=True)
        softmax = (logits - most).exp_()
        total = softmax.sum(-1, keepdim=True)
        ctx.save_for_backward(softmax.div_(total), words)
        return (total.log() + most - picked)[:, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        softmax, words = ctx.saved_tensors
        softmax.scatter_add_(1, words[:, None], torch.full_like(words[:, None], -1, dtype=softmax.dtype))
        return softmax.mul_(gradients[0][:, None]), None


class Layer(nn.Module):
    """A decoder layer of nanotron: hidden states, (batch, LENGTH, hidden)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.qkv, self.out = (nn.Linear(hidden, n * hidden, bias=False) for n in (3, 1))
        self.gate_up = nn.Linear(hidden, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, hidden, bias=False)

    def forward(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def rotated(states: Tensor) -> Tensor:
            first, second = states.chunk(2, -1)
            return states * cos + torch.cat((-second, first), -1) * sin

        qkv = self.qkv(self.norms[0](states)).view(*states.shape[:2], 3, HEADS, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).contiguous()
        mixed = functional.scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        states = states + self.out(mixed.transpose(1, 2).reshape(states.shape))
        gate, up = self.gate_up(self.norms[1](states)).chunk(2, -1)
        return states + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    """A language model of nanotron with its loss; words and labels are each (batch, LENGTH)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm, self.head = nn.RMSNorm(sizes.hidden), nn.Linear(sizes.hidden, WORDS, bias=False)
        if sizes.tied:
            self.head.weight = self.embed.weight
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.zeros(LENGTH, sizes.hidden // HEADS))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        states = self.embed(input_ids)
        for layer in self.layers:
            states = layer(states, self.cos, self.sin)
        logits = self.head(self.norm(states)).float()
        return CrossEntropy.apply(logits.flatten(0, 1), labels.flatten()).mean()  # type: ignore[no-untyped-call]


def _trained(model: nn.Module, batch: int, length: int) -> OpGraph:
    """Captures a training step in bf16, with gradients and weights of the optimizer in fp32."""
    words = torch.zeros(batch, length, dtype=torch.long, device="meta")
    inputs = {"input_ids": words, "labels": words}
    model = model.to(torch.bfloat16)
    return capture(model, inputs, optimizer="adamw", master_weights="fp32", gradient_dtype="fp32")


def _of_transformers(kind: Any, **sizes: Any) -> nn.Module:
    with torch.device("meta"):
        return kind(kind.config_class(**sizes))


@cache
def nanotron(sizes: Sizes, batch: int) -> OpGraph:
    """Captures the step of a microbatch of nanotron."""
    with torch.device("meta"):
        return _trained(Llama(sizes), batch, LENGTH)


@cache
def megatron(
    family: str, hidden: int, layers: int, heads: int, groups: int, length: int, batch: int
) -> OpGraph:
    """Captures the step of a microbatch of Megatron; here nothing is tied, and GPT has rotary positions."""
    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": length,
        "tie_word_embeddings": False,
        "use_cache": False,
    }
    kind: Any = transformers.BertForMaskedLM
    if family == "bert":
        sizes |= {"vocab_size": 30_592, "attn_implementation": "eager"}
    else:
        kind = transformers.Starcoder2ForCausalLM
        sizes |= {"vocab_size": 131_200, "num_key_value_heads": groups, "residual_dropout": 0.1}
    return _trained(_of_transformers(kind, **sizes), batch, length)


def decoding(name: str, precision: str) -> OpGraph:
    """Captures the step of a word after a prompt."""
    kind, sizes = {
        "t0pp-11b": (transformers.T5ForConditionalGeneration, T5_SIZES),
        "gpt-j-6b": (transformers.GPTJForCausalLM, {}),
        "gpt-neox-20b": (transformers.GPTNeoXForCausalLM, {}),
    }[name]
    words = torch.zeros(1, PROMPT, dtype=torch.long, device="meta")
    model = _of_transformers(kind, **sizes).to(torch.float16 if precision == "fp16" else torch.float32)
    return capture_decoding(model, {"input_ids": words}, PROMPT).graph


def rank_of_layers(sizes: Sizes, n_stages: int) -> list[int]:
    """Splits a model by the cost of its parts: a stage ends with the layer that makes it meet its share.

    Returns:
        Rank of each layer, ascending; norm, head and loss are on the last rank.

    Costs are those of nanotron, the products of a word with weights. No record has the splits that ran. In
    `models/base.py` a share must be exceeded, and the head may be apart from the loss; the memory of the
    first GPU and the times of eight and more stages agree with neither.
    """
    layer, head = 4 * sizes.hidden**2 + 3 * sizes.hidden * sizes.inner, WORDS * sizes.hidden
    total, stage, ranks = layer * sizes.layers + head, 0, list[int]()
    for index in range(sizes.layers):
        ranks.append(stage)
        stage += layer * (index + 1) * n_stages >= total * (stage + 1)
    return ranks
