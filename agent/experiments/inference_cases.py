"""Language models of common sizes on the meta device, by their public configurations, and unequal machines.

A function of a model is for `--model`: `agent.experiments.inference_cases:llama_8b`. Its input is a prompt.

Sources: config.json of meta-llama/Llama-3.1-8B and Llama-3.1-70B, Qwen/Qwen2.5-32B and Qwen3-30B-A3B, and
mistralai/Mixtral-8x7B-v0.1 on huggingface.co.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from envs.cluster.cluster import Cluster, Device
from envs.cluster.kinds import CONTEXT_BYTES, FRAGMENTED, KINDS, LAUNCH_S, MIB, TERA, Kind
from envs.cluster.links import Link, measured_links
from envs.cluster.presets import LATENCY_S, PCIE4_BYTES_PER_S

if TYPE_CHECKING:
    from torch import nn

PROMPT = 4096
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
Made = tuple["nn.Module", dict[str, Any]]


def llama_8b() -> Made:
    """Llama 3.1 8B: dense, 32 layers."""
    return _model("Llama", 4096, 14_336, 32, 32, 128_256)


def qwen_32b() -> Made:
    """Qwen2.5 32B: dense, 64 layers."""
    return _model("Qwen2", 5120, 27_648, 64, 40, 152_064)


def llama_70b() -> Made:
    """Llama 3.1 70B: dense, 80 layers."""
    return _model("Llama", 8192, 28_672, 80, 64, 128_256)


def mixtral_8x7b() -> Made:
    """Mixtral 8x7B: 47 billion parameters in 32 layers; 2 of 8 experts take a token."""
    return _model("Mixtral", 4096, 14_336, 32, 32, 32_000, num_local_experts=8, num_experts_per_tok=2)


def qwen_30b_a3b() -> Made:
    """Qwen3 30B-A3B: 31 billion parameters in 48 layers; 8 of 128 experts take a token."""
    experts = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
    return _model("Qwen3Moe", 2048, 6144, 48, 32, 151_936, num_key_value_heads=4, head_dim=128, **experts)


MODELS = (llama_8b, qwen_32b, llama_70b, mixtral_8x7b, qwen_30b_a3b)


def _model(family: str, *sizes: int, **others: int) -> Made:
    """Makes a model of a family of transformers, and a prompt whose last token alone is scored."""
    import transformers

    config = getattr(transformers, f"{family}Config")
    settings = dict(zip(SIZES, sizes, strict=True)) | {"num_key_value_heads": 8} | others
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(config(**settings))
        return model, {"input_ids": torch.zeros(1, PROMPT, dtype=torch.long), "logits_to_keep": 1}


RTX3090 = KINDS["rtx3090"]
PEAKS = {"fp32": 12.7 * TERA, "fp16": 25.5 * TERA, "bf16": 25.5 * TERA}
RTX3060 = Kind("rtx3090", 12_288 * MIB, 360e9, PEAKS, 28, 3 * MIB, CONTEXT_BYTES, FRAGMENTED)
"""An RTX 3060 of 12 GB by its datasheet, with the efficiency that is calibrated for the RTX 3090."""
SENT_S = 62e-6
"""Seconds that a transfer over PCIe 3.0 takes besides, the host's call and wait included, as measured."""
HOST = Device("host", "cpu-ddr5", 0.95 * 128e9, 2.3 * TERA, 83.2e9, 5e-6)
"""A desktop by datasheets: 16 cores of Zen 4 at 4.5 GHz, two channels of DDR5-5200, 128 GB."""
LAPTOPS = (
    Device("m3-max", "m3-max", 0.75 * 64e9, 14.2 * TERA, 400e9, LAUNCH_S),
    Device("m3", "m3", 0.75 * 24e9, 3.5 * TERA, 100e9, LAUNCH_S),
)
"""Laptops of 64 and 24 GB by datasheets; the GPU may take three quarters of the memory."""


def machine(link: Link, *devices: Device) -> Cluster:
    """Makes a cluster of devices with equal links of pairs."""
    shape = (len(devices), len(devices))
    matrices = np.full(shape, link.bytes_per_s), np.full(shape, link.latency_s)
    return Cluster("machine", devices, *matrices, sharing="pair", n_half_bytes=link.n_half_bytes)


def cards(*kinds: Kind) -> Cluster:
    """Makes a cluster of GPUs behind PCIe 3.0, as it was measured between others."""
    link = replace(measured_links()["pcie3"], latency_s=SENT_S)
    return machine(link, *(kind.device(f"gpu{at}") for at, kind in enumerate(kinds)))


MACHINES: Mapping[str, Callable[[], Cluster]] = {
    "3090 + 2080": partial(cards, RTX3090, KINDS["rtx2080"]),
    "3090 + 2 x 3060": partial(cards, RTX3090, RTX3060, RTX3060),
    "3090 + host": partial(machine, Link(PCIE4_BYTES_PER_S, LATENCY_S, 0.0), HOST, RTX3090.device("gpu0")),
    "2 laptops, 1 Gb/s": partial(machine, Link(125e6, 200e-6, 0.0), *LAPTOPS),
    "8 x 3090": partial(cards, *[RTX3090] * 8),
}
"""Machines by the name that the page has."""
