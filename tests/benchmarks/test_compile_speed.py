"""What compiling costs: once per machine, then once per process from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import ROOT, Figure


@pytest.mark.parametrize("calls", ["simulate", "decide", "search", "simulate decide search"])
def test_first_call(
    stopwatch: Stopwatch, record: Callable[[Figure], None], tmp_path: Path, calls: str
) -> None:
    taken_s: list[float] = []

    def run_process() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.first_call", *calls.split()],
            cwd=ROOT,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        taken_s.append(float(done.stdout))

    stopwatch(run_process, rounds=2)
    record(
        Figure(
            "First calls in a process",
            f"{calls}, loading from the cache",
            taken_s[1],
            "s",
            taken_s[0],
            "compiling, no cache",
        )
    )
