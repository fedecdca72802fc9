"""Graph files, format `placewalk.opgraph/1`: one graph in `.json`, one a line in `.jsonl`, or with `.gz`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphs.graph_columns import AMOUNTS, Csr, GraphError
from graphs.op_graph import OpGraph
from graphs.op_records import check_records, parse_amounts, parse_ops
from graphs.system.array_types import FloatArray
from graphs.system.json_fields import array, fields, integer, json_number, name, text
from graphs.system.json_files import (
    MAX_DECOMPRESSED_BYTES,
    FileFormatError,
    first_repeated,
    read_json,
    read_json_lines,
    write_json_atomic,
    write_json_lines_atomic,
)

FORMAT = "placewalk.opgraph/1"
SUFFIXES = (".json", ".jsonl")
GRAPH_REQUIRED = frozenset({"format", "name", "ops", "tensors"})
GRAPH_OPTIONAL = frozenset({"family", "tied"})
TENSOR_REQUIRED = frozenset({"producer", "consumers"})
TENSOR_OPTIONAL = frozenset({"bytes"})

Record = Mapping[str, Any]


def read_graphs(path: str | os.PathLike[str], *, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[OpGraph]:
    """Reads every graph of a file, at least one.

    Args:
        limit_bytes: greatest size of what a `.gz` file decompresses to.

    Raises:
        FileFormatError: the path is no readable graph file, is too large, or the file breaks the format.
        GraphError: a graph breaks a rule of `OpGraph`.
    """
    if _plain_suffix(Path(path)) == ".json":
        return [graph_from_json(read_json(path, limit_bytes=limit_bytes), str(path))]
    lines = read_json_lines(path, limit_bytes=limit_bytes)
    graphs = [graph_from_json(value, where) for where, value in lines]
    if not graphs:
        raise FileFormatError(f"{path}: holds no graph; expected one a line")
    return graphs


def write_graphs(path: str | os.PathLike[str], graphs: Iterable[OpGraph]) -> None:
    """Writes graphs atomically: exactly one to `.json`, any number to `.jsonl`.

    Raises:
        FileFormatError: the path ends otherwise, or a `.json` is given another number of graphs than one.
    """
    records = [graph_to_json(graph) for graph in graphs]
    if _plain_suffix(Path(path)) == ".jsonl":
        write_json_lines_atomic(path, records)
    elif len(records) == 1:
        write_json_atomic(path, records[0])
    else:
        raise FileFormatError(f"{path}: a .json holds one graph, not {len(records)}; write to a .jsonl")


def graph_from_json(value: object, where: str) -> OpGraph:
    """Makes a graph from its parsed JSON; `where` begins the message of any error.

    Raises:
        FileFormatError: the value breaks the format.
        GraphError: the graph breaks a rule of `OpGraph`.
    """
    record = fields(value, where, GRAPH_REQUIRED, GRAPH_OPTIONAL, format=FORMAT)
    columns = parse_ops(array(record["ops"], f"{where}: ops"), f"{where}: op")
    tensors = array(record["tensors"], f"{where}: tensors")
    tensor_where, tied_where = f"{where}: tensor", f"{where}: tied"
    check_records(tensors, tensor_where, TENSOR_REQUIRED, TENSOR_OPTIONAL)
    producers = [integer(row["producer"], f"{tensor_where} {i}: producer") for i, row in enumerate(tensors)]
    tied = [
        tuple(text(path, f"{tied_where} {index}") for path in array(group, f"{tied_where} {index}"))
        for index, group in enumerate(array(record.get("tied", []), tied_where))
    ]
    try:
        return OpGraph(
            name=name(record["name"], f"{where}: name"),
            family=text(record.get("family", ""), f"{where}: family"),
            tensor_producer=np.array(producers, dtype=np.int64),
            tensor_bytes=parse_amounts(tensors, "bytes", tensor_where),
            consumers=_consumers(tensors, tensor_where),
            tied=tuple(tied),
            **columns,
        )
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None


def graph_to_json(graph: OpGraph) -> dict[str, Any]:
    """Converts a graph to JSON values: whole numbers become integers.

    `seconds` names measured kinds only; an op has `dtype`, `gemm`, `image`, `source` and `shape` only
    where they are known.
    """
    amounts = {key: _json_column(getattr(graph, key)) for key in AMOUNTS}
    measured = {kind: _json_column(values) for kind, values in graph.seconds.items()}
    sizes = _json_column(graph.tensor_bytes)
    colocate = graph.colocate.tolist()
    gemm, image, ops = graph.gemm.tolist(), graph.image.tolist(), []
    for op, op_name in enumerate(graph.op_names):
        record: dict[str, Any] = {
            "name": op_name,
            "type": graph.op_types[op],
            "module": graph.modules[op],
            "phase": graph.phases[op],
            **{key: values[op] for key, values in amounts.items()},
            "colocate": None if colocate[op] < 0 else colocate[op],
        }
        seconds = {kind: values[op] for kind, values in measured.items() if values[op] is not None}
        optional: dict[str, Any] = {"seconds": seconds, "dtype": graph.dtypes[op]}
        optional |= {"gemm": any(gemm[op]) and gemm[op], "image": any(image[op]) and image[op]}
        optional["source"] = graph.sources[op]
        record |= {key: value for key, value in optional.items() if value}
        if (shape := graph.shapes[op]) is not None:
            record["shape"] = list(shape)
        ops.append(record)
    readers, ends = graph.consumers.items.tolist(), graph.consumers.ptr.tolist()
    tensors = [
        {"producer": producer, "bytes": sizes[tensor], "consumers": readers[ends[tensor] : ends[tensor + 1]]}
        for tensor, producer in enumerate(graph.tensor_producer.tolist())
    ]
    record = {"format": FORMAT, "name": graph.name, "family": graph.family, "ops": ops, "tensors": tensors}
    return record | ({"tied": [list(paths) for paths in graph.tied]} if graph.tied else {})


def _plain_suffix(path: Path) -> str:
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix not in SUFFIXES:
        raise FileFormatError(f"{path}: graph files end in .json, .jsonl, .json.gz or .jsonl.gz")
    return suffix


def _consumers(tensors: Sequence[Record], where: str) -> Csr:
    rows = [array(tensor["consumers"], f"{where} {index}: consumers") for index, tensor in enumerate(tensors)]
    for index, row in enumerate(rows):
        for value in row:
            integer(value, f"{where} {index}: a consumer")
        if len(set(row)) != len(row):
            raise FileFormatError(
                f"{where} {index}: lists consumer {first_repeated(row)} twice; expected each once"
            )
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return Csr.from_pairs(
        owner, np.array([v for row in rows for v in sorted(row)], dtype=np.int64), len(rows)
    )


def _json_column(values: FloatArray) -> list[int | float | None]:
    return [json_number(value) for value in values.tolist()]
