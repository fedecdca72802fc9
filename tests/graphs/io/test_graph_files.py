"""Graph files and graphs: what is read back, and how what is damaged, too large or no file is refused."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.graph_columns import GraphError
from graphs.io.graph_files import graph_from_json, graph_to_json, read_graphs, write_graphs
from graphs.limits import MAX_BYTES, MAX_FLOPS
from graphs.op_graph import OpGraph, build_graph
from graphs.system.json_files import (
    CHUNK_BYTES,
    FileFormatError,
    parse_json,
    read_json,
    read_json_lines,
    write_bytes_atomic,
    write_json_atomic,
)
from tests.record_cases import graph_record, with_tensor


@pytest.fixture
def graph() -> OpGraph:
    return graph_from_json(graph_record(), "here")


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".jsonl", ".jsonl.gz"])
def test_written_graphs_are_read_back(tmp_path: Path, graph: OpGraph, suffix: str) -> None:
    path = tmp_path / f"graphs{suffix}"
    write_graphs(path, [graph])
    (again,) = read_graphs(path)
    assert graph_to_json(again) == graph_to_json(graph)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_blank_lines_hold_no_record_and_names_are_in_any_language(tmp_path: Path) -> None:
    path = tmp_path / "graphs.jsonl"
    line = json.dumps(graph_record(name="gráf"), ensure_ascii=False)
    path.write_text(f"{line}\n\n{line}\n", encoding="utf-8")
    assert [graph.name for graph in read_graphs(path)] == ["gráf", "gráf"]


def test_one_json_holds_one_graph(tmp_path: Path, graph: OpGraph) -> None:
    with pytest.raises(FileFormatError, match=r"holds one graph, not 2; write to a \.jsonl"):
        write_graphs(tmp_path / "graphs.json", [graph, graph])
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json_atomic(path, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_atomic(path, {"new": float("nan")})
    assert read_json(path) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


GOOD = json.dumps(graph_record()).encode()


BAD_FILES = {
    "empty": ("g.json", b"", "is empty"),
    "no graph": ("g.jsonl", b"\n \n", "holds no graph"),
    "cut short": ("g.json", GOOD[:-9], "is no strict JSON"),
    "not UTF-8": ("g.json", b'{"name": "\xff"}', "is not UTF-8"),
    "NaN": ("g.json", b'{"flops": NaN}', "NaN is no JSON number"),
    "Infinity": ("g.json", b'{"flops": -Infinity}', "-Infinity is no JSON number"),
    "duplicate key": ("g.json", b'{"name": 1, "name": 2}', "key 'name' is given twice"),
    "deep": ("g.json", b"[" * 100_000, "is nested too deeply"),
    "long integer": ("g.json", b"1" * 10_000, "is no strict JSON: an integer has too many digits"),
    "an array of graphs": ("g.json", b"[" + GOOD + b"]", "is an array; expected an object"),
    "second line": ("g.jsonl", GOOD + b"\n{}\n", "g.jsonl:2: keys 'format', 'name', 'ops', 'tensors' are"),
    "no gzip": ("g.json.gz", GOOD, "is no complete gzip file"),
    "cut gzip": ("g.json.gz", gzip.compress(GOOD)[:-12], "is no complete gzip file"),
    "corrupt gzip": ("g.json.gz", gzip.compress(GOOD)[:14] + b"\xff" * 40, "is no complete gzip file"),
    "another suffix": ("g.txt", GOOD, "graph files end in .json, .jsonl"),
}


@pytest.mark.parametrize(("file", "data", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, file: str, data: bytes, message: str) -> None:
    (tmp_path / file).write_bytes(data)
    with pytest.raises(FileFormatError) as caught:
        read_graphs(tmp_path / file)
    assert message in str(caught.value)
    assert str(tmp_path / file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_decompresses_to_too_much_is_refused_at_the_limit(tmp_path: Path) -> None:
    bomb, most = tmp_path / "g.json.gz", 3 * CHUNK_BYTES
    bomb.write_bytes(gzip.compress(bytes(300 * CHUNK_BYTES), 1))
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=f"holds more than {most} bytes .*--max-decompressed-bytes"):
            read_graphs(bomb, limit_bytes=most)
        assert tracemalloc.get_traced_memory()[1] < 20 * CHUNK_BYTES
    finally:
        tracemalloc.stop()
    for name, read in (("g.json", read_json), ("g.jsonl", lambda *a, **b: list(read_json_lines(*a, **b)))):
        plain, packed = tmp_path / name, tmp_path / f"{name}.gz"
        plain.write_bytes(GOOD)
        packed.write_bytes(gzip.compress(GOOD))
        assert read(plain, limit_bytes=1)
        assert read(packed, limit_bytes=len(GOOD)) == read(packed)
        with pytest.raises(FileFormatError, match="holds more than"):
            read(packed, limit_bytes=len(GOOD) - 1)


def test_gzip_files_may_have_many_parts(tmp_path: Path) -> None:
    path = tmp_path / "g.json.gz"
    path.write_bytes(b"".join(gzip.compress(GOOD[at : at + 1]) for at in range(len(GOOD))))
    assert read_graphs(path)[0].name == "g"


def test_repeated_keys_and_consumers_are_found_in_linear_time() -> None:
    n = 100_000
    keys = ",".join(f'"{at}": 0' for at in range(n))
    consumers = [*range(1, n), n - 1]
    began = time.process_time()
    with pytest.raises(FileFormatError, match=f"key '{n - 1}' is given twice"):
        parse_json(f'{{{keys}, "{n - 1}": 0}}', "here")
    with pytest.raises(FileFormatError, match=f"tensor 0: lists consumer {n - 1} twice"):
        graph_from_json(with_tensor(consumers=consumers), "here")
    assert time.process_time() - began < 10


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json.gz")
    with pytest.raises(FileFormatError, match="is no regular file"):
        read_graphs(tmp_path / "pipe.json.gz")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(FileFormatError, match="is no regular file"):
        read_graphs(tmp_path / "folder.json")
    with pytest.raises(FileFormatError, match="cannot be read: No such file"):
        read_graphs(tmp_path / "absent.json")
    with pytest.raises(FileFormatError, match="is no path"):
        read_graphs("a\0b.json")


@given(
    data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
    packed=st.booleans(),
    lines=st.booleans(),
)
def test_no_bytes_crash_the_reader(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, packed: bool, lines: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzz.json{'l' * lines}{'.gz' * packed}"
    path.write_bytes(data)
    with pytest.raises(FileFormatError):
        read_graphs(path)
    write_bytes_atomic(path, data)
    with pytest.raises(FileFormatError):
        read_graphs(path)


def test_every_field_arrives(graph: OpGraph) -> None:
    assert (graph.name, graph.family) == ("g", "f")
    assert graph.op_names == ("w", "mm", "mm_grad")
    assert graph.op_types == ("parameter", "aten.mm", "")
    assert graph.modules == ("", "a.b", "")
    assert graph.phases == ("forward", "forward", "backward")
    np.testing.assert_array_equal(graph.flops, [0, 1024, 0])
    np.testing.assert_array_equal(graph.bytes_moved, [0, 0.5, 0])
    np.testing.assert_array_equal(graph.resident_bytes, [64, 0, 0])
    np.testing.assert_array_equal(graph.colocate, [0, 0, -1])
    np.testing.assert_array_equal(graph.tensor_producer, [0, 1])
    np.testing.assert_array_equal(graph.tensor_bytes, [16, 4096])
    assert [graph.consumers.row(tensor).tolist() for tensor in range(2)] == [[1, 2], [2]]
    np.testing.assert_array_equal(graph.seconds["k80"], [np.nan, np.nan, 1e-4])
    assert graph.dtypes == ("", "tf32", "")
    np.testing.assert_array_equal(graph.gemm, [[0, 0, 0, 0], [1, 32, 4, 4], [0, 0, 0, 0]])
    np.testing.assert_array_equal(graph.image, [[0, 0], [4, 2], [0, 0]])
    assert graph.sources == ("", "model.py:3", "")
    assert graph.shapes == (None, (2, 0), None)


def test_a_graph_that_says_nothing_of_its_arithmetic_is_written_as_before() -> None:
    value = graph_to_json(build_graph("g", "", [{"name": "a"}], []))
    assert value["ops"] == [
        {"name": "a", "type": "", "module": "", "phase": "forward", "flops": 0}
        | {"bytes_moved": 0, "resident_bytes": 0, "colocate": None}
    ]


def test_whole_numbers_are_written_as_integers(graph: OpGraph) -> None:
    op = graph_to_json(graph)["ops"][1]
    assert json.dumps([op["flops"], op["bytes_moved"]]) == "[1024, 0.5]"


def test_graphs_built_in_python_may_hold_numbers_of_numpy() -> None:
    op = {"name": "a", "flops": np.int64(3), "bytes_moved": np.float32(0.5), "colocate": np.int64(2)}
    graph = build_graph("g", "", [op], [])
    assert (graph.flops[0], graph.bytes_moved[0], graph.colocate[0]) == (3.0, 0.5, 2)


@pytest.mark.parametrize("amount", ["flops", "bytes_moved", "resident_bytes"])
def test_amounts_that_overflow_together_are_refused(amount: str) -> None:
    with pytest.raises(GraphError, match=f"{amount} of the whole step is inf, at op 0 .* at most"):
        build_graph("g", "", [{"name": str(at), amount: 1.5e308} for at in range(2)], [])
    most = {"flops": MAX_FLOPS}.get(amount, MAX_BYTES)
    with pytest.raises(GraphError, match=f"a step has at most {re.escape(f'{most:g}')}"):
        build_graph("g", "", [{"name": str(at), amount: most / 2} for at in range(3)], [])
    thirds = [{"name": str(at), amount: most / 3} for at in range(3)]
    assert build_graph("g", "", thirds, []).n_ops == 3


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "\ud800", "\u2028"])
def test_what_cannot_be_printed_cannot_be_constructed(graph: OpGraph, text: str) -> None:
    names = ("w", "mm", text)
    for changes in (
        {"name": text},
        {"family": text},
        {"op_names": names},
        {"op_types": names},
        {"modules": names},
        {"seconds": {text: graph.flops}},
    ):
        with pytest.raises(GraphError, match="holds characters that cannot be printed"):
            replace(graph, **changes)


def test_what_has_no_name_cannot_be_constructed(graph: OpGraph) -> None:
    for changes in ({"name": ""}, {"op_names": ("w", "mm", "")}, {"seconds": {"": graph.flops}}):
        with pytest.raises(GraphError, match="has an empty name"):
            replace(graph, **changes)
    with pytest.raises(GraphError, match="at most 2"):
        replace(graph, colocate=np.array([2**60, -1, -1]))
