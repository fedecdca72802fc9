"""Benchmarks: figures are collected while they run and printed beside their baselines at the end.

`make bench` prints the table; `BENCH_RESULTS=FOLDER make bench` writes it there too, as text and JSON.
A figure is the best of several rounds, and so is its baseline: other work on the machine only ever adds time.
The spread is in pytest-benchmark's own table, which comes with `--benchmark-verbose`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks.figures import Figure, table, write

# Read when torch is first imported. A thread that spins while it waits for another keeps it from running
# where cores are shared: beside two busy processes an update on two threads took 50 times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

FIGURES = pytest.StashKey[list[Figure]]()


class Stopwatch(Protocol):
    """Times a call with pytest-benchmark; returns the least wall time, in seconds."""

    def __call__(self, call: Callable[[], object], rounds: int = 0) -> float: ...


def pytest_configure(config: pytest.Config) -> None:
    config.option.benchmark_quiet = True
    config.stash[FIGURES] = []


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[Figure], None]:
    """Adds a figure to the table at the end."""
    return request.config.stash[FIGURES].append


@pytest.fixture
def stopwatch(benchmark: BenchmarkFixture) -> Stopwatch:
    """The benchmark fixture, cut down to what the figures need; `rounds` = 0 lets it choose."""

    def time_call(call: Callable[[], object], rounds: int = 0) -> float:
        if rounds:
            benchmark.pedantic(call, rounds=rounds)
        else:
            benchmark(call)
        return float(benchmark.stats.stats.min)

    return time_call


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(FIGURES, [])
    if not figures:
        return
    terminalreporter.section("figures")
    for line in table(figures):
        terminalreporter.write_line(line)
    if folder := os.environ.get("BENCH_RESULTS"):
        for path in write(figures, Path(folder)):
            terminalreporter.write_line(f"written to {path}")
