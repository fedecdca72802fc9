"""How much copies slow ops: fitted to files of the form of the Mist data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.calibration.__main__ import main
from agent.calibration.op_tables import MeasuredOpsError
from agent.calibration.overlap import (
    COPIES,
    OverlapRow,
    errors,
    fit_slowdown,
    held_out_errors,
    overlap_report,
    read_overlaps,
    together_s,
)
from envs.cluster.cluster import MAX_SLOWDOWN
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs import build_graph
from graphs.system.json_files import FileFormatError
from tests.envs.random_problems import with_slowdown
from tests.envs.simulator.test_host_thread import gpus, ops


def case(product: int, latency: str, **moved: int) -> dict[str, str]:
    return {"compute_n": str(product), "latency": latency, "std": "0.01 ms"} | {
        size: str(moved.get(size, 0)) for size in COPIES
    }


def write(path: Path, cases: list[dict[str, str]]) -> Path:
    path.write_text(json.dumps({"a100": {f"case {at}": each for at, each in enumerate(cases)}}))
    return path


GPU_COPY, HOST_COPY = {"gpu_to_gpu_mbytes": 9}, {"cpu_to_gpu_mbytes": 7}
CASES = [
    case(4, "8.00 ms"),
    case(0, "4.00 ms", **GPU_COPY),
    case(4, "10.00 ms", **GPU_COPY),
    case(0, "16.00 ms", **HOST_COPY),
    case(4, "16.00 ms", **HOST_COPY),
    case(4, "30.00 ms", **GPU_COPY, **HOST_COPY),
]


def test_pairs_of_one_op_and_one_copy_are_read(tmp_path: Path) -> None:
    assert read_overlaps([write(tmp_path / "mist.json", CASES)]) == [
        OverlapRow("a100", "between GPUs", 8e-3, 4e-3, 10e-3),
        OverlapRow("a100", "from the host", 8e-3, 16e-3, 16e-3),
    ]


@pytest.mark.parametrize("slowdown", [1.0, 1.25, 2.2])
@pytest.mark.parametrize("copy_s", [3.0, 9.0, 30.0])
def test_what_is_predicted_is_what_the_simulator_gives(slowdown: float, copy_s: float) -> None:
    # op1 on the other device lets the copy of op0 run beside op2.
    graph = build_graph("g", "", ops(1.0, 1.0, 10.0), [(0, copy_s, [1])])
    step = simulate_problem(Problem(graph, with_slowdown(gpus(), slowdown)), np.array([0, 1, 0]))
    assert max(step.finish_s[2] - 1.0, copy_s) == pytest.approx(together_s(10.0, copy_s, slowdown))


def rows_of(slowdown: float) -> list[OverlapRow]:
    return [
        OverlapRow("k", "between GPUs", op_s, copy_s, together_s(op_s, copy_s, slowdown))
        for op_s in (1.0, 2.0, 4.0)
        for copy_s in (0.5, 1.0, 8.0)
    ]


@pytest.mark.parametrize("slowdown", [1.0, 1.3, 2.2, MAX_SLOWDOWN])
def test_the_slowdown_that_made_the_times_is_found(slowdown: float) -> None:
    rows = rows_of(slowdown)
    assert fit_slowdown(rows) == pytest.approx(slowdown)
    assert max(errors(rows, slowdown)) == 0.0
    assert max(held_out_errors(rows)) == pytest.approx(0.0, abs=1e-9)


def test_errors_are_of_ops_that_the_fit_has_not_seen() -> None:
    odd = [OverlapRow("k", "between GPUs", 16.0, copy_s, 16.0 + copy_s / 2) for copy_s in (2.0, 4.0)]
    assert sum(error > 0.01 for error in held_out_errors([*rows_of(1.0), *odd])) == len(odd)


def test_the_command_prints_a_line_for_each_kind_of_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [case(5, "12.00 ms"), case(5, "14.00 ms", **GPU_COPY), case(5, "16.00 ms", **HOST_COPY)]
    path = write(tmp_path / "mist.json", [*CASES, *more])
    assert main(["overlap", str(path)]) == 0
    gpu, host = capsys.readouterr().out.splitlines()
    assert gpu.startswith(
        "a100             between GPUs     2 rows, slowdown    2.00, held out   0.0% median"
    )
    assert host.startswith(
        "a100             from the host    2 rows, slowdown    1.00, held out   0.0% median"
    )
    assert list(overlap_report(read_overlaps([path]))) == [gpu, host]


BAD: dict[str, tuple[Any, str]] = {
    "no object": ([], "is an array; expected an object"),
    "no cases": ({"a100": 1}, "a100: is a number; expected an object"),
    "a missing key": ({"a100": {"x": {}}}, "a100: x: keys 'compute_n', .* are missing"),
    "seconds": ({"a100": {"x": case(1, "8 s")}}, "x: latency is '8 s'; expected milliseconds"),
    "no time": ({"a100": {"x": case(1, "0 ms")}}, "x: latency is '0'; expected a number from 1e-15"),
    "no number": ({"a100": {"x": case(1, "x ms")}}, "x: latency is 'x'; expected a number"),
    "not alone": (
        {"a100": {"x": case(1, "8 ms", **GPU_COPY)}},
        "a100: compute_n 1 with gpu_to_gpu_mbytes 9 was timed together, but not each alone",
    ),
}


@pytest.mark.parametrize(("value", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: object, message: str
) -> None:
    path = tmp_path / "mist.json"
    path.write_text(json.dumps(value))
    with pytest.raises((FileFormatError, MeasuredOpsError), match=message):
        read_overlaps([path])
    assert main(["overlap", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
