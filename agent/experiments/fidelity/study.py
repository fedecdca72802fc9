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

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from agent.evaluation.policies import open_policy
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import progress_bar
from agent.experiments.fidelity import classes, links, ops, placements, profiles, steps
from agent.experiments.fidelity.models import GraphCache
from agent.experiments.fidelity.placements import held_out_graphs
from agent.experiments.launcher import exit_code, markdown_table
from agent.placers.base import Budget
from agent.policy.seen import NOT_SEEN
from envs.cluster.kinds import device_of_name
from envs.cluster.presets import get_cluster
from graphs.dataset import load_graphs
from graphs.families import FAMILIES
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv

STEPS = Path(__file__).parent / "measured" / "steps"
"""The measured steps that come with the project."""
PLACED_BY = ("heft", "refine", "policy", "policy-refine")
"""Placers of `--placements`; those that learned take the shipped policy."""


def compare_steps(folder: Path, out: Path) -> None:
    """Writes `steps.csv`, and `classes.csv` if there are traces; prints their tables."""
    measured, left_out = steps.read_steps(folder)
    graphs = GraphCache(out)
    rows = steps.compare_steps(measured, graphs.workload, device_of_name)
    write_csv(out / "steps.csv", steps.COLUMNS, steps.csv_rows(rows))
    print("Whole steps: simulated over measured, less 1\n")
    print(markdown_table(steps.steps_table(rows)), "\n")
    for reason, count in left_out.items():
        print(f"{count} left out: {reason}")
    compared = classes.compare_classes(measured, graphs.workload, device_of_name)
    if compared:
        write_csv(out / "classes.csv", classes.COLUMNS, classes.csv_rows(compared))
        print("\nOps of these steps by class: sums of simulated and of measured seconds\n")
        print(markdown_table(classes.classes_table(compared)), "\n")


def compare_ops(files: Sequence[Path], out: Path) -> None:
    """Writes `ops.csv`, `op_errors.csv` and `op_ranks.csv`; prints the last two."""
    rows = ops.compare_ops(files, out)
    errors, ranks = ops.op_errors(rows), ops.device_orders(rows)
    for name, kind, table in (("op_errors", ops.OpErrors, errors), ("op_ranks", ops.DeviceOrder, ranks)):
        columns = [item.name for item in fields(kind)]
        write_csv(out / f"{name}.csv", columns, [astuple(row) for row in table])
    print("\nOps: |simulated / measured - 1| on shapes that nothing was fitted to\n")
    print(ops.errors_table(errors))
    print("\nPairs of devices that are ranked as measured\n")
    print(ops.orders_table(ranks), "\n")


def compare_links(files: Sequence[Path], out: Path) -> None:
    """Writes `links.csv`; prints the errors by kind of link."""
    rows = links.compare_links(files)
    write_csv(out / "links.csv", links.COLUMNS, links.csv_rows(rows))
    print("\nLinks: |predicted / measured - 1| on sizes that nothing was fitted to\n")
    print(markdown_table(links.links_table(rows)), "\n")


def compare_profiles(files: Sequence[Path], out: Path) -> None:
    """Writes `profiles.csv`; prints the errors by device and dtype."""
    rows, left_out = profiles.compare_profiles(files)
    write_csv(out / "profiles.csv", profiles.COLUMNS, profiles.csv_rows(rows))
    print("\nLinear layers of profiles, forward pass\n")
    print(markdown_table(profiles.profiles_table(rows)), "\n")
    for reason, count in left_out.items():
        print(f"{count} left out: {reason}")


def compare_placements(pairs: Sequence[tuple[str, str]], options: Namespace) -> None:
    """Writes `placements.csv` of graphs that the shipped policy was not trained on, and prints its table.

    Args:
        pairs: presets or files of clusters, with the old and with the new costs.
        options: those of the command line.
    """
    clusters = [(get_cluster(old), get_cluster(new)) for old, new in pairs]
    shipped = load_graphs(FAMILIES)
    policy = open_policy("pretrained", shipped)
    seen = {name for name, how in policy.how_seen(shipped).items() if how != NOT_SEEN}
    graphs = held_out_graphs(seen, options.per_family, GraphCache(options.out))
    spec = EvaluationSpec(
        graphs=tuple(graphs),
        clusters=tuple({cluster.name: cluster for pair in clusters for cluster in pair}.values()),
        placers=PLACED_BY,
        budget=Budget(options.evaluations),
        policy=policy,
    )
    with progress_bar() as (report, _):
        rows = placements.compare_placements(
            clusters, spec, options.out / "placements", jobs=options.jobs, report=report
        )
    write_csv(options.out / "placements.csv", placements.COLUMNS, placements.csv_rows(rows))
    print("\nPlacements found under old costs, timed under new ones: geometric means\n")
    print(markdown_table(placements.placements_table(rows)), "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; returns the exit code: 0 done, 1 stopped, 2 wrong input."""
    parser = OneLineParser(prog="agent.experiments.fidelity", description=__doc__)
    parser.add_argument(
        "--steps",
        type=Path,
        default=STEPS,
        metavar="DIR",
        help="measured steps, a folder a device (default: those that come with the project)",
    )
    parser.add_argument(
        "--ops",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="measured ops, CSV files as `python -m agent.calibration fit` takes them",
    )
    parser.add_argument(
        "--links",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="measured transfers, CSV files as `python -m agent.calibration links` takes them",
    )
    parser.add_argument(
        "--profiles",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="measured layers of transformers, CSV files of Sailor in their folders",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/fidelity"),
        metavar="DIR",
        help="takes the tables as CSV, and the captured graphs for the next time (default: %(default)s)",
    )
    parser.add_argument(
        "--placements",
        nargs=2,
        action="append",
        default=[],
        metavar=("OLD", "NEW"),
        help="clusters with old and new costs, presets or files; may be given again",
    )
    parser.add_argument(
        "--evaluations", type=int, default=10_000, metavar="N", help="of a placer (default: %(default)s)"
    )
    parser.add_argument(
        "--per-family", type=int, default=3, metavar="N", help="graphs to place (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    options = parser.parse_args(arguments)

    def work() -> None:
        options.out.mkdir(parents=True, exist_ok=True)
        compare_steps(options.steps, options.out)
        if options.ops:
            compare_ops(options.ops, options.out)
        if options.links:
            compare_links(options.links, options.out)
        if options.profiles:
            compare_profiles(options.profiles, options.out)
        if options.placements:
            compare_placements(options.placements, options)

    return exit_code("agent.experiments.fidelity", work)
