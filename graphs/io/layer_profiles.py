"""Reads layer profiles that other pipeline planners publish: those of PipeDream and the inputs of Piper.

A layer becomes a forward and a backward op with measured seconds. A layer with weights also has a parameter
and its update; all ops of a layer are colocated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx

from graphs.op_graph import OpGraph, build_graph
from graphs.system.json_fields import array, fields, integer, name, number
from graphs.system.json_files import FileFormatError, read_json, read_text

WEIGHT_BYTES = 4.0
"""Bytes of a weight, fp32."""
UPDATE_FLOPS, UPDATE_BYTES = 2.0, 20.0
"""Operations and memory traffic of the update of a weight: SGD with momentum reads three and writes two."""
MS_PER_S = 1e3
STATE_PER_WEIGHT = 4.0
"""Bytes that a PipeDream layer holds for each byte of weights: gradients and two optimizer states besides."""
FORWARD_SHARE = 1 / 3
"""Forward share of a Piper layer's time where the file does not tell it."""
NUMBER = r"([0-9.eE+-]+)"
NODE = re.compile(
    rf"(\S+) -- (.*) -- forward_compute_time={NUMBER}, backward_compute_time={NUMBER}, "
    rf"activation_size=(?:\[\s*)?{NUMBER}[^,]*, parameter_size={NUMBER}(?: -- stage_id=\d+)?"
)
EDGE = re.compile(r"\s+(\S+) -- (\S+)")
PIPER_KEYS = frozenset({"maxDevices", "maxMemoryPerDevice", "bandwidth", "mbsInBatch", "nodes", "edges"})
VARIANT_KEYS = frozenset(
    {"id", "timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB", "syncTimeFw", "syncTimeBw"}
)
VANILLA, RECOMPUTED = "vanilla", "activation recomp"


@dataclass
class Layer:
    """One layer of a profile.

    Attributes:
        weight_bytes: bytes of its weights, which are also those of their gradients.
        resident_bytes: bytes that it holds for the whole step.
        outputs: bytes of each tensor that its forward op makes, and the layers whose forward ops read it.
        kept_bytes: bytes that its forward op keeps for its backward op; None where these are its outputs.
        gradients: bytes of each tensor that its backward op makes, and the layers whose backward ops read it.
    """

    name: str
    forward_s: float
    backward_s: float
    weight_bytes: float
    resident_bytes: float
    kept_bytes: float | None = None
    outputs: list[tuple[float, list[int]]] = field(default_factory=list)
    gradients: list[tuple[float, list[int]]] = field(default_factory=list)


def read_pipedream_profile(path: str | os.PathLike[str], *, kind: str) -> OpGraph:
    """Reads a profile of PipeDream (`graph.txt`, or with `.gz`).

    A layer's output has its `activation_size`, the first where the file lists several. The backward op of a
    layer makes one gradient for all layers that it reads from, as large as their outputs on average.

    Args:
        kind: device kind that the profile was measured on; it names the measured seconds.

    Raises:
        FileFormatError: the path is no readable profile.
        GraphError: the graph breaks a rule of `OpGraph`.

    Source: Narayanan et al. 2019, "PipeDream"; profiles of github.com/msr-fiddle/pipedream.
    """
    layers: list[Layer] = []
    sizes: list[float] = []
    named: list[tuple[str, str, str]] = []
    for number_of_line, line in enumerate(read_text(Path(path)).split("\n"), start=1):
        where = f"{path}:{number_of_line}"
        if edge := EDGE.fullmatch(line):
            named.append((where, edge[1], edge[2]))
        elif node := NODE.fullmatch(line):
            forward_ms, backward_ms, size, weights = (_amount(text, where) for text in node.groups()[2:])
            state = STATE_PER_WEIGHT * weights
            layers.append(Layer(node[1], forward_ms / MS_PER_S, backward_ms / MS_PER_S, weights, state))
            sizes.append(size)
        elif line.strip():
            raise FileFormatError(f"{where}: is no node and no edge of a PipeDream profile")
    at = _numbers([layer.name for layer in layers], str(path))
    pairs = [(_known(one, at, where), _known(other, at, where)) for where, one, other in named]
    edges = _edges(len(layers), pairs)
    for index, layer in enumerate(layers):
        layer.outputs = [(sizes[index], list(edges.successors(index)))]
        if before := list(edges.predecessors(index)):
            layer.gradients = [(sum(sizes[one] for one in before) / len(before), before)]
    return _layer_graph(path, "pipedream", kind, layers, edges)


def read_piper_profile(path: str | os.PathLike[str], *, kind: str, unit_s: float = 1.0) -> OpGraph:
    """Reads an input file of Piper (`.json`, or with `.gz`), without tensor parallelism.

    The forward time of a layer is what recomputation adds to its time. A layer keeps `memoryUsageA` bytes for
    its backward pass and holds `memoryUsageB` bytes for the whole step.

    Args:
        kind: device kind that the profile was measured on; it names the measured seconds.
        unit_s: unit of `timePerSample` in seconds: 1 in the files of transformers, 1e-3 in that of ResNet.

    Raises:
        FileFormatError: the path is no such file.
        GraphError: the graph breaks a rule of `OpGraph`.

    Source: Tarnawski, Narayanan and Phanishayee 2021, "Piper"; inputs of github.com/msr-fiddle/piper.
    """
    record = fields(read_json(path), str(path), PIPER_KEYS)
    nodes = array(record["nodes"], f"{path}: nodes")
    records = [
        fields(node, f"{path}: node {index}", frozenset({"id", "name", "TMPCs"}))
        for index, node in enumerate(nodes)
    ]
    ids = [integer(node["id"], f"{path}: node {index}: id") for index, node in enumerate(records)]
    at = _numbers([str(one) for one in ids], str(path))
    layers = [_piper_layer(node, f"{path}: node {node['id']}", unit_s) for node in records]
    pairs = []
    for index, edge in enumerate(array(record["edges"], f"{path}: edges")):
        where = f"{path}: edge {index}"
        entry = fields(edge, where, frozenset({"sourceId", "destId", "communicationCost"}))
        one, other = (_known(str(entry[key]), at, where) for key in ("sourceId", "destId"))
        size = _amount(entry["communicationCost"], f"{where}: communicationCost")
        layers[one].outputs.append((size, [other]))
        layers[other].gradients.append((size, [one]))
        pairs.append((one, other))
    return _layer_graph(path, "piper", kind, layers, _edges(len(layers), pairs))


def _piper_layer(node: Mapping[str, Any], where: str, unit_s: float) -> Layer:
    degrees = node["TMPCs"]
    if not isinstance(degrees, Mapping) or "1" not in degrees:
        raise FileFormatError(f"{where}: TMPCs has no entry '1', the costs without tensor parallelism")
    variants = [fields(each, f"{where}: TMPCs", VARIANT_KEYS) for each in array(degrees["1"], where)]
    by_id = {variant["id"]: variant for variant in variants}
    if VANILLA not in by_id:
        raise FileFormatError(f"{where}: has no variant '{VANILLA}'")
    plain = by_id[VANILLA]
    total_s, weights, kept, held = (
        _amount(plain[key], f"{where}: {key}")
        for key in ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
    )
    forward_s = total_s * FORWARD_SHARE
    if RECOMPUTED in by_id:
        forward_s = _amount(by_id[RECOMPUTED]["timePerSample"], f"{where}: timePerSample") - total_s
    forward_s = min(max(forward_s, 0.0), total_s)
    title = f"{name(node['name'], f'{where}: name')}{node['id']}"
    return Layer(title, forward_s * unit_s, (total_s - forward_s) * unit_s, weights, held, kept)


def _amount(value: object, where: str) -> float:
    """Checks that a value, or the text of one, is a finite number of at least 0."""
    try:
        found = float(value) if isinstance(value, str) else number(value, where)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise FileFormatError(f"{where}: {value!r} is no finite number of at least 0")
    return found


def _numbers(names: Sequence[str], where: str) -> dict[str, int]:
    """Index of each name."""
    at = {each: index for index, each in enumerate(names)}
    if not names:
        raise FileFormatError(f"{where}: holds no layer; expected at least one")
    if len(at) < len(names):
        raise FileFormatError(f"{where}: two layers have the same name; give each its own")
    return at


def _known(each: str, at: Mapping[str, int], where: str) -> int:
    if each not in at:
        raise FileFormatError(f"{where}: names layer '{each}', which the file does not have")
    return at[each]


def _edges(n_layers: int, pairs: Sequence[tuple[int, int]]) -> nx.DiGraph:
    edges = nx.DiGraph()
    edges.add_nodes_from(range(n_layers))
    edges.add_edges_from(pairs)
    return edges


def _layer_graph(
    path: str | os.PathLike[str], family: str, kind: str, layers: Sequence[Layer], edges: nx.DiGraph
) -> OpGraph:
    """Makes the op graph: forward ops with their parameters, backward ops in reverse, updates.

    Args:
        edges: the layers by index, each before those that read its outputs.
    """
    try:
        order = list(nx.topological_sort(edges))
    except nx.NetworkXUnfeasible:
        raise FileFormatError(
            f"{path}: its edges form a cycle; a layer reads from earlier layers only"
        ) from None
    ops: list[dict[str, object]] = []
    at: dict[tuple[str, int], int] = {}

    def add(layer: int, part: str, **columns: object) -> None:
        at[part, layer] = len(ops)
        ops.append({"name": f"{layers[layer].name}/{part}", "colocate": rank[layer], **columns})

    rank = {layer: position for position, layer in enumerate(order)}
    weighted = [layer for layer in order if layers[layer].weight_bytes]
    for layer in order:
        if layers[layer].weight_bytes:
            add(layer, "weight", type="parameter", resident_bytes=layers[layer].resident_bytes)
        state = 0.0 if layers[layer].weight_bytes else layers[layer].resident_bytes
        add(layer, "forward", type="layer", resident_bytes=state, seconds={kind: layers[layer].forward_s})
    for layer in reversed(order):
        add(layer, "backward", type="layer", phase="backward", seconds={kind: layers[layer].backward_s})
    for layer in weighted:
        n_weights = layers[layer].weight_bytes / WEIGHT_BYTES
        amounts = {"flops": UPDATE_FLOPS * n_weights, "bytes_moved": UPDATE_BYTES * n_weights}
        add(layer, "update", type="sgd", phase="optimizer", **amounts)
    tensors = [tensor for layer in order for tensor in _tensors(layer, layers[layer], at)]
    return build_graph(Path(path).name.partition(".")[0], family, ops, tensors)


def _tensors(
    index: int, layer: Layer, at: Mapping[tuple[str, int], int]
) -> list[tuple[int, float, list[int]]]:
    forward, backward = at["forward", index], at["backward", index]
    own = [] if layer.kept_bytes is not None else [backward]
    found = [(forward, size, [at["forward", other] for other in to] + own) for size, to in layer.outputs]
    if layer.kept_bytes is not None:
        found.append((forward, layer.kept_bytes, [backward]))
    found += [(backward, size, [at["backward", other] for other in to]) for size, to in layer.gradients]
    if layer.weight_bytes:
        update = at["update", index]
        found.append((at["weight", index], layer.weight_bytes, [forward, backward, update]))
        found.append((backward, layer.weight_bytes, [update]))
    return found
