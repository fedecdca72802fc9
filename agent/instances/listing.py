"""Prints the instances of the benchmark, and verdicts on submitted placements."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from agent.instances.best_known import read_best_known
from agent.instances.instance import SOURCES
from agent.instances.submissions import check_submissions, submissions_of
from graphs.system.errors import InputError


def listing() -> Iterator[str]:
    """Yields a line for each source, and for each of its instances the best known step."""
    known = read_best_known()
    for key, source in SOURCES.items():
        pipeline = source.pipeline
        objective = f"{pipeline.schedule} x {pipeline.microbatches}" if pipeline else "one step"
        yield f"{source.title} ({source.licence}), {objective}: best ms, over the bound"
        for name in source.names():
            best = known.get(f"{key}:{name}")
            line = f"  {key}:{name}"
            if best is not None:
                over = "optimal" if best.is_optimal else f"{best.step_time_s / best.bound_s:.3f}"
                line = f"{line:<61} {best.step_time_s * 1e3:>9.6g} {over:>8}"
            yield line


def validate(path: Path, command: str) -> int:
    """Prints a verdict on each submission; returns the exit code.

    Returns:
        0 if all claims hold, 1 if one does not, 2 if a file is no placement of an instance.
    """
    code = 0
    for file, verdict in check_submissions(submissions_of(path), read_best_known()):
        if isinstance(verdict, InputError):
            print(f"{command}: {verdict}", file=sys.stderr)
            code = 2
        elif verdict.fault:
            print(f"{command}: {file}: {verdict.line}", file=sys.stderr)
            code = max(code, 1)
        else:
            print(f"{file}: {verdict.line}")
    return code
