"""Simulated times against times that were measured on real GPUs.

`python -m agent.experiments.fidelity` captures the models of the measured steps, simulates them on one device
and compares: whole steps (`steps.csv`), and classes of ops where traces lie beside the steps (`classes.csv`).
`--ops FILE...` compares measured ops with the calibrations (`ops.csv`,
summed up in `op_errors.csv` and `op_ranks.csv`).
`--links FILE...` compares measured transfers between GPUs with the links of the presets (`links.csv`).
`--profiles FILE...` compares measured linear layers of transformers with the calibrations (`profiles.csv`).
`--placements OLD NEW` places held-out graphs under the costs of two clusters too (`placements.csv`); the same
command goes on where it was stopped.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent.experiments.command import exit_code
from agent.experiments.fidelity import answer, classes, links, ops, placements, profiles, steps
from agent.experiments.fidelity.models import GraphCache
from agent.experiments.rows import markdown_table, write_rows
from envs.cluster.kinds import device_of_name
from graphs.system.command_line import OneLineParser

FILES = {
    "ops": ("measured ops, CSV files as `python -m agent.calibration fit` takes them"),
    "links": ("measured transfers, CSV files as `python -m agent.calibration links` takes them"),
    "profiles": ("measured layers of transformers, CSV files of Sailor in their folders"),
}
"""Flags that take files of measurements."""


def report(path: Path, heading: str, rows: Sequence[Any], table: Callable[[Any], list[list[str]]]) -> None:
    """Writes rows, and prints their table under a heading."""
    write_rows(path, rows)
    print(f"\n{heading}\n\n{markdown_table(table(rows))} \n")


def compare_steps(folder: Path, out: Path) -> None:
    """Writes `steps.csv`, and `classes.csv` if there are traces; prints their tables."""
    measured, left_out = steps.read_steps(folder)
    cache = GraphCache(out)
    rows = steps.compare_steps(measured, cache.workload, device_of_name)
    report(out / "steps.csv", "Whole steps: simulated over measured, less 1", rows, steps.steps_table)
    answer.say(left_out)
    if compared := classes.compare_classes(measured, cache.workload, device_of_name):
        heading = "Ops of these steps by class: sums of simulated and of measured seconds"
        report(out / "classes.csv", heading, compared, classes.classes_table)


def compare_ops(files: Sequence[Path], out: Path) -> None:
    """Writes `ops.csv`, `op_errors.csv` and `op_ranks.csv`; prints the last two."""
    rows = ops.compare_ops(files)
    write_rows(out / "ops.csv", rows, {"op_class": "class"})
    heading = "Ops: |simulated / measured - 1| on shapes that nothing was fitted to"
    report(out / "op_errors.csv", heading, ops.op_errors(rows), ops.errors_table)
    heading = "Pairs of devices that are ranked as measured"
    report(out / "op_ranks.csv", heading, ops.device_orders(rows), ops.orders_table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; returns the exit code: 0 done, 1 stopped, 2 wrong input."""
    parser = OneLineParser(prog="agent.experiments.fidelity", description=__doc__)
    parser.add_argument("--steps", type=Path, default=answer.STEPS, metavar="DIR", help="measured steps")
    for name, text in FILES.items():
        parser.add_argument(f"--{name}", type=Path, nargs="+", default=[], metavar="FILE", help=text)
    text = "takes the tables as CSV, and the captured graphs for the next time (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("runs/fidelity"), metavar="DIR", help=text)
    text = "clusters with old and new costs, presets or files; may be given again"
    parser.add_argument(
        "--placements", nargs=2, action="append", default=[], metavar=("OLD", "NEW"), help=text
    )
    for name, default, text in (
        ("evaluations", 10_000, "of a placer"),
        ("per-family", 3, "graphs to place"),
        ("jobs", 1, "processes"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    options = parser.parse_args(arguments)
    return exit_code("agent.experiments.fidelity", lambda: _work(options))


def _work(options: Namespace) -> None:
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    compare_steps(options.steps, out)
    if options.ops:
        compare_ops(options.ops, out)
    if options.links:
        heading = "Links: |predicted / measured - 1| on sizes that nothing was fitted to"
        report(out / "links.csv", heading, links.compare_links(options.links), links.links_table)
    if options.profiles:
        rows, left_out = profiles.compare_profiles(options.profiles)
        report(out / "profiles.csv", "Linear layers of profiles, forward pass", rows, profiles.profiles_table)
        answer.say(left_out)
    if options.placements:
        old, new = zip(*options.placements, strict=True)
        flags = (options.per_family, options.evaluations, options.jobs)
        (found,) = answer.placement_rows(out, old, new, (), *flags)
        heading = "Placements found under old costs, timed under new ones: geometric means"
        report(out / "placements.csv", heading, found, placements.placements_table)


if __name__ == "__main__":
    sys.exit(main())
