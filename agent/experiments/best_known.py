"""Enters submissions in the table of the best known answers: `python -m agent.experiments.best_known DIR`.

A DIR of the experiment `benchmark` has submissions in `placements/`, and bounds in its rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agent.experiments.benchmark import PLACEMENTS, BenchmarkRow
from agent.experiments.command import exit_code
from agent.experiments.experiment import EXPERIMENTS
from agent.experiments.rows import read_rows
from agent.instances.best_known import encoded, read_best_known, read_placements, write_best_known
from agent.instances.profiles import DATA
from agent.instances.submissions import check_submissions, submissions_of
from graphs.system.command_line import OneLineParser
from graphs.system.errors import InputError

COMMAND = "agent.experiments.best_known"


def enter(folder: Path, table: Path = DATA) -> int:
    """Enters each submission that is a new best, and greater bounds; returns how many submissions.

    Args:
        folder: of submissions.
        table: folder of the table.

    Raises:
        InputError: a submission is no placement of an instance.
    """
    known, records, entered = read_best_known(table), dict(read_placements(table)), 0
    rows = folder / EXPERIMENTS["benchmark"].rows[0]
    files = [] if rows.exists() and not (folder / PLACEMENTS).exists() else submissions_of(folder)
    for _, verdict in check_submissions(files, known):
        if isinstance(verdict, InputError):
            raise verdict
        print(verdict.line)
        if verdict.is_new_best:
            name, entered = verdict.instance.name, entered + 1
            known[name], records[name] = verdict.found, encoded(name, verdict.placement)
    for row in read_rows(rows, BenchmarkRow) if rows.exists() else []:
        if row.instance in known and row.bound_s > known[row.instance].bound_s:
            known[row.instance] = replace(known[row.instance], bound_s=row.bound_s)
    write_best_known(known.values(), records, table)
    return entered


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0: done, 2: wrong input."""
    parser = OneLineParser(prog=COMMAND, description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="submissions, or what a benchmark wrote")
    options: argparse.Namespace = parser.parse_args(arguments)
    return exit_code(COMMAND, lambda: print(f"entered: {enter(options.folder)}"))


if __name__ == "__main__":
    sys.exit(main())
