"""Compare device placements: heuristics, search, trained policies and placements given as files."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.command_line import OneLineParser

if TYPE_CHECKING:
    from agent.evaluation.spec import EvaluationSpec

EPILOG = """examples:
  python evaluate.py --families nmt ptb --cluster 4xv100 --seeds 5 --out runs/heldout
  python evaluate.py --model my_package.models:make --placers heft annealing policy --out runs/mine
  python evaluate.py --families ptb --placements mine.json --out runs/scored

DIR gets results.csv, summary.csv, report.html and placements/. If interrupted, the same command goes on.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code: 0 done, 2 wrong input, 1 interrupted."""
    # Read when torch is loaded. Threads that spin while they wait starve others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = vars(_parser().parse_args(words))
    out, jobs = options.pop("out"), options.pop("jobs")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(options, out, jobs, shlex.join(["python", "evaluate.py", *words]))
    except KeyboardInterrupt:
        print(f"evaluate.py: interrupted; the same command goes on in {out}", file=sys.stderr)
        return 1


def _run(options: dict[str, object], out: Path, jobs: int, command: str) -> int:
    from agent.evaluation.config import config_from_flags
    from agent.evaluation.run import open_folder

    try:
        spec, left_out = config_from_flags(options).spec()
        open_folder(out, spec)
    except ValueError as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 2
    if left_out:
        count = "1 graph is" if len(left_out) == 1 else f"{len(left_out)} graphs are"
        print(f"{count} left out, seen by the policy in training; --include-seen keeps such graphs")
    _compare(spec, out, jobs, command)
    return 0


def _compare(spec: EvaluationSpec, out: Path, jobs: int, command: str) -> None:
    from agent.evaluation.html_report import write_report
    from agent.evaluation.run import evaluate
    from agent.evaluation.summary import summarise, write_summary
    from agent.evaluation.terminal_report import print_tables, progress_bar

    with progress_bar() as report:
        trials = evaluate(spec, out, jobs=jobs, report=report)
    lines = summarise(trials)
    write_summary(out / "summary.csv", lines)
    write_report(out / "report.html", trials, lines, command)
    print_tables(lines)
    print(f"rows: {out / 'results.csv'}   report: {out / 'report.html'}   placements: {out / 'placements'}")


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} processes; give a whole number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="evaluate.py",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    graphs = parser.add_argument_group("graphs (at least one source)")
    graphs.add_argument("--families", nargs="+", metavar="NAME", help="families of the benchmark set")
    graphs.add_argument(
        "--graphs", nargs="+", metavar="FILE", help="graph files: .json or .jsonl, or with .gz"
    )
    graphs.add_argument(
        "--model", metavar="PKG.MOD:FUNCTION", help="a function that returns (module, inputs)"
    )
    graphs.add_argument("--include-seen", action="store_true", help="keep graphs the policy was trained on")
    graphs.add_argument("--cluster", nargs="+", metavar="NAME|FILE", help="default: 4xv100")
    placers = parser.add_argument_group("placers")
    placers.add_argument("--placers", nargs="+", metavar="NAME", help="default: all; none with --placements")
    placers.add_argument("--policy", metavar="DIR", help="a run's folder, or pretrained (default)")
    placers.add_argument("--orders", nargs="+", metavar="NAME", help="what policies walk in; default: topo")
    placers.add_argument(
        "--coarsen", type=int, metavar="N", help="place larger graphs as N groups of ops; default: op by op"
    )
    placers.add_argument("--placements", nargs="+", metavar="FILE", help="placement files to score")
    placers.add_argument("--seeds", type=int, metavar="N", help="of placers that draw at random; default: 3")
    placers.add_argument("--budget", type=int, metavar="N", help="evaluations per trial; default: 10000")
    placers.add_argument("--seconds", type=float, metavar="S", help="wall time per trial; default: no limit")
    run = parser.add_argument_group("run")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="new, or one to go on in")
    run.add_argument("--jobs", type=_processes, default=1, metavar="N", help="processes; default: 1")
    return parser


if __name__ == "__main__":
    sys.exit(main())
