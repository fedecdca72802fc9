"""The step of one token after a prompt: a model of transformers that reads its key-value cache."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
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

CACHES = ("past_key_values", "cache_params", "state")
"""Names of caches in what models of transformers return."""
COPIES = ("aten.cat", "aten.copy", "aten.index_copy")
"""Ops that add tokens to a cache, or replace a state."""
PROBE = 61
"""Length of a first prompt: a cache without a trace of it is that of any prompt."""


def capture_decoding(module: nn.Module, inputs: Any, prompt: int, name: str | None = None) -> CapturedStep:
    """Captures the inference of one token that reads what the model keeps of those before it from a cache.

    Each tensor in the cache that the model makes of the prompt is a parameter named by its place, such as
    `past_0_keys` and `past_0_conv_states_0`, on the device of the op that reads it. Costs are those of
    servers: attention is fused, a token is added to the cache in place, and of a mixture's experts those are
    read that are chosen, where they are.

    Args:
        module: a model of transformers that generates, e.g. `LlamaForCausalLM`; it is not changed.
        inputs: inputs of the module; the batch is that of the first tensor.
        prompt: tokens that each layer has in its cache, or less with a window; at least 1. If an encoder
            reads tokens, they are its own, and the decoder has one; if it reads `inputs`, the decoder's.
        name: name of the graph; the class of the module by default.

    Raises:
        CaptureError: the module has no such cache, or cannot be traced.
    """
    model, token = _decoding_model(module, inputs, prompt)
    return _in_place(capture_step(model, token, training=False, gpu=None, name=name))


def _decoding_model(module: nn.Module, inputs: Any, prompt: int) -> tuple[nn.Module, dict[str, Any]]:
    """Makes a copy on fake tensors that returns the scores of the next token, and its inputs."""
    model, token = module, dict[str, Any]()
    try:
        for length in sorted({min(prompt, PROBE), prompt}):
            inputs_of_prompt = _inputs_of_prompt(unwrapped(module), inputs, length)
            step = Step(unwrapped(module), inputs_of_prompt, training=False)
            model = step.model
            with suppress(ValueError, AttributeError):
                model.set_experts_implementation("batched_mm")  # type: ignore[operator]
            with step.fake_mode, torch.device("cpu"):
                token = read_prompt(model, dict(zip(inputs_of_prompt, step.tensors, strict=True)))
            if not _depends_on(length, model):
                break
    except Exception as error:
        name, generates = type(module).__name__, hasattr(module, "prepare_inputs_for_generation")
        raise CaptureError(
            f"model '{name}': makes no key-value cache from a prompt of {prompt} tokens ({one_line(error)})"
            f"{'' if generates else '; a prompt needs a model of transformers that generates'}{logged(error)}"
        ) from None
    return model, token


def _inputs_of_prompt(module: Any, inputs: Any, prompt: int) -> dict[str, Tensor]:
    words = torch.zeros(batch_size(inputs), prompt, dtype=torch.long, device="meta")
    if not module.config.is_encoder_decoder:
        return {"input_ids": words}
    if (read := module.main_input_name) == "input_ids":
        return {read: words, "decoder_input_ids": words[:, :1]}
    if not (isinstance(inputs, Mapping) and read in inputs):
        raise CaptureError(f"its encoder reads {read}; give it by keyword")
    return {read: inputs[read], "decoder_input_ids": words}


def read_prompt(model: Any, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Runs a prompt; `forward` of the model then returns the scores of one token, with the cache as buffers.

    Args:
        model: a model of transformers in evaluation mode; it is changed.
        inputs: the prompt's, by keyword.

    Returns:
        Inputs of the next token: zeros for the word, and the outputs of an encoder.
    """
    word = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    cache: dict[str, Any] = {}
    if getattr(model.generation_config, "cache_implementation", None):
        (settings, _), (batch, length) = model._prepare_generation_config(None), inputs[word].shape
        model._prepare_cache_for_generation(settings, cache, None, batch, length + 1)
    made = model(**inputs, **cache, use_cache=True)
    name = next((name for name in CACHES if made.get(name) is not None), None)
    if name is None:
        raise CaptureError(f"it returns none of {', '.join(CACHES)}")
    holes, stand_ins = dict[str, object](), dict[int, Any]()
    for path, tensor in _leaves_in(made[name], "past", set()):
        # A number that nothing computed or changed, such as a window, stays out.
        if isinstance(tensor, Tensor) and id(tensor) not in stand_ins:
            is_state = tensor.dim() or tensor.is_floating_point() or tensor._version
            stand_ins[id(tensor)] = holes.setdefault(path, object()) if is_state else None
            if is_state:
                model.register_buffer(path, tensor.detach())
    model.cached = name, copy.deepcopy(made[name], stand_ins), holes
    model.__class__ = type(type(model).__name__, (_Decoding, type(model)), {})
    token = {word: inputs[word].new_zeros(len(inputs[word]), 1)}
    encoded = made.get("encoder_last_hidden_state")
    return token if encoded is None else token | {"encoder_outputs": (encoded,)}


def _leaves_in(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields the tensors, numbers and other leaves of a cache, and the name of each by its place."""
    is_object = hasattr(value, "__dict__") and not isinstance(value, Tensor | type)
    if not (is_object or isinstance(value, list | tuple | Mapping)):
        yield path, value
    elif id(value) not in seen:
        seen.add(id(value))
        places = vars(value) if is_object else value
        for key, part in places.items() if isinstance(places, Mapping) else enumerate(places):
            yield from _leaves_in(part, path if key == "layers" else f"{path}_{key}", seen)


def _depends_on(length: int, model: Any) -> bool:
    """Says whether a cache has a size or a number that may follow from the length of its prompt."""
    _, emptied, holes = model.cached
    values = [leaf for _, leaf in _leaves_in(emptied, "", set())]
    values += [size for path in holes for size in model.get_buffer(path).shape]
    return any(near in values for near in (length - 1, length, length + 1))


class _Decoding(nn.Module):
    """The class before that of a model; buffers fill the holes in its cache, which has a name."""

    cached: tuple[str, Any, dict[str, object]]

    def forward(self, **inputs: Any) -> Tensor:
        name, emptied, holes = self.cached
        buffers: dict[int, Any] = {id(hole): self.get_buffer(path) for path, hole in holes.items()}
        words = inputs.pop(next(iter(inputs)))
        inputs |= {name: copy.deepcopy(emptied, buffers), "use_cache": True}
        model: Any = super()
        return model.forward(**model.prepare_inputs_for_generation(words, **inputs))[0]


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
        is_cache = graph.op_types[op] in COPIES
        added = sizes[others].sum() if is_cache else 0.0
        moved[op], sizes[copied] = 2 * added, added
        readers[tensor] = np.union1d(readers[tensor], graph.consumers.row(copied))
        colocate[op] = colocate[op] if colocate[op] >= 0 else colocate[graph.tensor_producer[tensor]]
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
        for tensor in graph.inputs.row(op).tolist() if kind in (*COPIES, "aten.index") else ():
            source = graph.tensor_producer[tensor]
            is_cache = graph.op_names[source].startswith("past_")
            if graph.op_types[source] == "parameter" and is_cache == (kind != "aten.index"):
                yield op, tensor
