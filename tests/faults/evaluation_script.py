"""An evaluation to disturb: `python -m tests.faults.evaluation_script OUT --placers ...`.

Where it runs as a command, and in its worker processes, there are placers that go wrong as well.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent.evaluation.comparison.summary import summarise
from agent.evaluation.report.page import write_report
from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import print_tables
from agent.placers.base import PLACERS, Budget, Placer
from tests.agent.evaluation_cases import quiet
from tests.agent.placement_cases import make_cluster, training_graph

BUDGET = 5_000
"""Evaluations that take a trial of the random placer a tenth of a second."""


def make_spec(placers: tuple[str, ...] = ("random",), seeds: int = 20, n_graphs: int = 2) -> EvaluationSpec:
    graphs = tuple(training_graph(2, index + 1, name=f"g{index}") for index in range(n_graphs))
    return EvaluationSpec(graphs, (make_cluster(2),), placers, seeds=seeds, budget=Budget(BUDGET))


def fail() -> None:
    raise RuntimeError("\x1b[31mred\nand more")


def run_out_of_memory() -> None:
    raise MemoryError


def hang() -> None:
    os.write(1, b"hangs\n")  # at once, as two processes write
    time.sleep(600)


FAULTS: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0),
    "exits": lambda: os._exit(3),
    "hangs": hang,
    "raises": fail,
    "memory": run_out_of_memory,
}

if __name__ in ("__main__", "__mp_main__"):
    for name, fault in FAULTS.items():
        PLACERS.register(name, Placer(name, lambda search, rng, fault=fault: fault()))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--placers", nargs="+", default=["random"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--graphs", type=int, default=2)
    parser.add_argument("--timeout", type=float)
    options = parser.parse_args()
    print("begun", flush=True)
    spec = make_spec(tuple(options.placers), options.seeds, options.graphs)
    result = evaluate(spec, options.out, jobs=2, trial_timeout_s=options.timeout, report=quiet)
    n_failed = len(result.failures)
    write_report(options.out / "report.html", result.trials, "script", n_failed=n_failed)
    print_tables(summarise(result.trials), n_failed)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
