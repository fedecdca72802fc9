"""The step of one token after a prompt: a model of transformers that reads its key-value cache."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphs.capture.capture import capture_step
from graphs.capture.captured_step import CapturedStep
from graphs.capture.loss import CaptureError
from graphs.capture.step import Step, one_line, unwrapped
from graphs.capture.structures import batch_size
from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph
from graphs.system.errors import logged

CACHE = "past_{}_{}"
"""Name of the buffer that holds the keys or values of a layer."""
PARTS = ("keys", "values")
COPIES = ("aten.cat", "aten.index")


def capture_decoding(module: nn.Module, inputs: Any, prompt: int, name: str | None = None) -> CapturedStep:
    """Captures the inference of one token that reads the keys and values of those before it from a cache.

    The cache of a layer is two parameters, `past_0_keys` and `past_0_values`, on the device of its attention.
    Costs are those of servers: attention is fused, a token is added to the cache in place, and of a mixture's
    experts those are read that are chosen, where they are.

    Args:
        module: a model of transformers that generates, e.g. `LlamaForCausalLM`; it is not changed.
        inputs: of the module; the batch is that of the first tensor.
        prompt: tokens that each layer has in its cache, or less with a window; at least 1.
        name: name of the graph; the class of the module by default.

    Raises:
        CaptureError: the module has no such cache, or cannot be traced.
    """
    model, token = _decoding_model(module, inputs, prompt)
    return _in_place(capture_step(model, token, training=False, gpu=None, name=name))


def _decoding_model(module: nn.Module, inputs: Any, prompt: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Makes a copy on fake tensors that returns the scores of the next token, and its inputs."""
    try:
        words = torch.zeros(batch_size(inputs), prompt, dtype=torch.long, device="meta")
        step = Step(unwrapped(module), {"input_ids": words, "use_cache": True}, training=False)
        model: Any = step.model
        with suppress(ValueError, AttributeError):
            model.set_experts_implementation("batched_mm")
        with step.fake_mode, torch.device("cpu"):
            cache = model(input_ids=step.tensors[0], use_cache=True).past_key_values
        for number, layer in enumerate(cache.layers):
            for part in PARTS:
                model.register_buffer(CACHE.format(number, part), getattr(layer, part).detach())
            held = [name for name, value in vars(layer).items() if isinstance(value, Tensor)]
            vars(layer).update(dict.fromkeys(held))
    except Exception as error:
        name = type(module).__name__
        raise CaptureError(
            f"model '{name}': makes no key-value cache from input_ids ({one_line(error)}); a prompt needs a "
            f"model of transformers that generates{logged(error)}"
        ) from None
    model.emptied = cache
    model.__class__ = type(type(model).__name__, (_Decoding, type(model)), {})
    return model, {"input_ids": words[:, :1]}


class _Decoding(nn.Module):
    """The class before that of a model; the cache is made of buffers."""

    emptied: Any

    def forward(self, input_ids: Tensor) -> Tensor:
        cache = copy.copy(self.emptied)
        cache.layers = [copy.copy(layer) for layer in cache.layers]
        for number, layer in enumerate(cache.layers):
            for part in PARTS:
                setattr(layer, part, self.get_buffer(CACHE.format(number, part)))
        scores: Tensor = super().forward(input_ids=input_ids, past_key_values=cache, use_cache=True)[0]
        return scores


def _in_place(captured: CapturedStep) -> CapturedStep:
    """Removes copies of the cache and of chosen experts: what reads a copy reads the original, on its device.

    An op that copies the cache to add a token moves the token alone; one that copies experts takes no time.
    """
    graph = captured.graph
    readers = [graph.consumers.row(tensor) for tensor in range(graph.n_tensors)]
    moved, sizes, colocate = graph.bytes_moved.copy(), graph.tensor_bytes.copy(), graph.colocate.copy()
    for op, tensor in _copies(graph):
        others = np.setdiff1d(graph.inputs.row(op), tensor)
        (copied,) = graph.outputs.row(op)
        is_cache = graph.op_types[op] == "aten.cat"
        added = sizes[others].sum() if is_cache else 0.0
        moved[op], sizes[copied] = 2 * added, added
        readers[tensor] = np.union1d(readers[tensor], graph.consumers.row(copied))
        for reader in graph.consumers.row(copied).tolist():
            if colocate[reader] >= 0:
                colocate[colocate == colocate[reader]] = colocate[op]
            colocate[reader] = colocate[op]
    ptr = np.cumsum([0, *map(len, readers)])
    consumers = Csr(ptr, np.concatenate(readers).astype(np.int64))
    changed = replace(graph, bytes_moved=moved, tensor_bytes=sizes, colocate=colocate, consumers=consumers)
    return replace(captured, graph=changed)


def _copies(graph: OpGraph) -> Iterator[tuple[int, int]]:
    """Yields the ops that copy a cache or chosen experts, and the tensor that each copies."""
    for op, kind in enumerate(graph.op_types):
        for tensor in graph.inputs.row(op).tolist() if kind in COPIES else ():
            source = graph.tensor_producer[tensor]
            is_cache = graph.op_names[source].startswith(CACHE.partition("{")[0])
            if graph.op_types[source] == "parameter" and is_cache == (kind == "aten.cat"):
                yield op, tensor
