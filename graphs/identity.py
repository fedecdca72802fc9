"""Hashes that tell whether two graphs are the same: as files, in structure and costs, or in structure
alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graphs.graph_columns import AMOUNTS
from graphs.io.graph_files import graph_to_json
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray


def content_hash(graph: OpGraph) -> str:
    """SHA-256 of a graph's canonical JSON (sorted keys, no spaces, no `source`, `shape` and `tied`), in hex.

    Names count: graphs with equal hashes have equal files.
    """
    plain = replace(graph, sources=(), shapes=(), tied=())
    text = json.dumps(graph_to_json(plain), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def graph_hash(graph: OpGraph) -> str:
    """SHA-256 of a graph's structure and costs, in hex: what decides how long placements of it take.

    Names of the graph, its family, ops and modules do not count, nor what only some graphs say of an op
    (`seconds`, `dtypes`, `gemm`, `image`). The order of the ops does, as it is the program's.
    """
    amounts = [np.ascontiguousarray(getattr(graph, name)).tobytes() for name in AMOUNTS]
    groups = _numbered(graph.colocate).tobytes()
    return _digest([*_structure(graph), *amounts, graph.tensor_bytes.tobytes(), groups])


def topology_hash(graph: OpGraph) -> str:
    """SHA-256 of a graph's structure, in hex: the ops' types in program order, and who reads whose results.

    Draws of one architecture in several widths or batch sizes have the same.
    """
    return _digest(_structure(graph))


def _structure(graph: OpGraph) -> list[bytes]:
    types = json.dumps(graph.op_types).encode()
    consumers = graph.consumers
    return [types, *(part.tobytes() for part in (graph.tensor_producer, consumers.ptr, consumers.items))]


def _numbered(ids: IntArray) -> IntArray:
    """Colocation ids from 0 in the order in which they come; -1 stays."""
    number: dict[int, int] = {-1: -1}
    return np.array([number.setdefault(group, len(number) - 1) for group in ids.tolist()], dtype=np.int64)


def _digest(parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
