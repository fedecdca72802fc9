"""Compare placements: heuristics, search, trained policies, and files of others."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from agent.evaluation.config import CLUSTERS, RUN, EvaluationConfig
from agent.settings import add_flags
from graphs.command_line import OneLineParser, interruptible, run_command
from graphs.errors import printable

if TYPE_CHECKING:
    from agent.evaluation.spec import EvaluationSpec
    from envs.cluster.cluster import Cluster

NAME = "evaluate.py"
EPILOG = """examples:
  python evaluate.py --families nmt ptb --seeds 5 --out runs/heldout
  python evaluate.py --model my_package.models:make --out runs/mine
  python evaluate.py --families ptb --placements mine.json --out runs/scored
  python evaluate.py --print-cluster 4xv100 > mine.json

DIR gets results.csv, summary.csv, report.html and placements/.
If interrupted, the same command goes on.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 1 interrupted or failed, 2 wrong input."""
    return run_command(NAME, lambda: _main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(words: Sequence[str]) -> int:
    # Read when torch is loaded. Threads that spin while they wait starve others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = vars(_parser().parse_args(words))
    run = {key: options.pop(key) for key in ("out", "jobs", "trial_timeout")}
    out = run["out"]
    spec, left_out = EvaluationConfig.from_json(options, "command line").spec()
    from agent.evaluation.run import open_folder

    open_folder(out, spec)
    if left_out:
        count = "1 graph is" if len(left_out) == 1 else f"{len(left_out)} graphs are"
        print(f"{count} left out, seen by the policy in training; --include-seen keeps such graphs")
    try:
        with interruptible():
            n_failed = _compare(spec, **run, command=shlex.join(["python", NAME, *words]))
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted; the same command goes on in {printable(str(out))}", file=sys.stderr)
        return 1
    return 1 if n_failed else 0


def _compare(spec: EvaluationSpec, out: Path, jobs: int, trial_timeout: float | None, command: str) -> int:
    """Makes the trials, the tables and the report; returns the number of trials that failed."""
    from agent.evaluation.html_report import write_report
    from agent.evaluation.run import evaluate
    from agent.evaluation.summary import summarise, write_summary
    from agent.evaluation.terminal_report import print_tables, progress_bar

    with progress_bar() as report:
        found = evaluate(spec, out, jobs=jobs, trial_timeout_s=trial_timeout, report=report)
    lines, n_failed = summarise(found.trials), len(found.failures)
    write_summary(out / "summary.csv", lines)
    write_report(out / "report.html", found.trials, lines, command, n_failed)
    print_tables(lines, n_failed)
    print(f"rows: {out / 'results.csv'}\nreport: {out / 'report.html'}\nplacements: {out / 'placements'}")
    return n_failed


class _PrintCluster(argparse.Action):
    """Prints a cluster as a cluster file and ends the command."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        from envs.cluster.presets import get_cluster

        print(cluster_text(get_cluster(str(values))))
        parser.exit(0)


def cluster_text(cluster: Cluster) -> str:
    """The text of a cluster file; each row of a matrix is one line."""
    from envs.cluster.files import cluster_to_json

    text = json.dumps(cluster_to_json(cluster), indent=2)
    return re.sub(r"\[\n[\d\s.,eE+-]+\]", lambda row: f"[{' '.join(row[0][1:-1].split())}]", text)


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} processes; give a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} seconds; give a finite number above 0")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=NAME,
        usage="evaluate.py --out DIR --families|--graphs|--model ... [flags]",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    groups = add_flags(parser, EvaluationConfig)
    groups[CLUSTERS].add_argument(
        "--print-cluster",
        action=_PrintCluster,
        metavar="NAME",
        help="print a preset as a cluster file (JSON) to start from, and end",
    )
    run = parser.add_argument_group(RUN)
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="new, or one to go on in")
    run.add_argument("--jobs", type=_processes, default=1, metavar="N", help="processes (default: 1)")
    run.add_argument(
        "--trial-timeout",
        type=_seconds,
        default=None,
        metavar="S",
        help="end a trial after S seconds, try it once more, then count it as failed (default: never)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
