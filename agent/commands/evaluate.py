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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from agent.contexts.workers.ray_cluster import check_ray_is_installed
from agent.evaluation.config import CLUSTERS, RUN, EvaluationConfig
from agent.settings import add_flags
from graphs.command_line import OneLineParser, interruptible, run_command
from graphs.errors import printable

if TYPE_CHECKING:
    from agent.evaluation.measuring import Measuring
    from agent.evaluation.processes import TrialMaker
    from agent.evaluation.results import Trial
    from agent.evaluation.run import EvaluationResult
    from agent.evaluation.spec import EvaluationSpec
    from envs.cluster.cluster import Cluster

NAME = "evaluate.py"
LOCAL, RAY = "local", "ray"
EPILOG = """examples:
  python evaluate.py --families nmt ptb --seeds 5 --out runs/heldout
  python evaluate.py --model my_package.models:make --out runs/mine
  python evaluate.py --families ptb --placements mine.json --out runs/scored
  python evaluate.py --print-cluster 4xv100 > mine.json

DIR gets results.csv, summary.csv, report.html and placements/; beside those of
a --model, tables, a device map for accelerate, a trace, and what bounds it.
If interrupted, the same command goes on.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 1 interrupted or failed, 2 wrong input."""
    return run_command(NAME, lambda: _main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(words: Sequence[str]) -> int:
    # Read when torch is loaded. Threads that spin while they wait starve others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = vars(_parser().parse_args(words))
    run = {key: options.pop(key) for key in ("out", "jobs", "trial_timeout", "engine")}
    trace, tensorboard = options.pop("trace"), options.pop("tensorboard")
    measure = Measure(**{item.name: options.pop(item.name) for item in fields(Measure)})
    out = run["out"]
    config = EvaluationConfig.from_json(options, "command line")
    spec, left_out = config.spec()
    if run["engine"] == RAY:
        check_ray_is_installed()
    from agent.evaluation.run import open_folder

    measuring = _measuring(measure, config, spec, out)
    try:
        with interruptible():
            if measuring and measure.profile:
                spec = _profiled(measuring, spec)
            open_folder(out, spec)
            _tell_left_out(left_out)
            command = shlex.join(["python", NAME, *words])
            found, n_failed = _compare(spec, **run, command=command)
            if trace or config.model is not None:
                _hand_over(spec, out, found, trace)
            if tensorboard:
                _write_events(spec, out, found)
            if measuring:
                _measure(measuring, measure, spec, found)
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted; the same command goes on in {printable(str(out))}", file=sys.stderr)
        return 1
    return 1 if n_failed else 0


@dataclass(frozen=True)
class Measure:
    """What is to be measured.

    Attributes:
        profile: whether ops are timed before they are placed.
        measured: number of placements that are measured.
        fidelity: number of varied placements that are simulated and measured.
        measure_timeout: seconds after which a placement has taken too long.
    """

    profile: bool
    measured: int | None
    fidelity: int | None
    measure_timeout: float


def _measuring(
    measure: Measure, config: EvaluationConfig, spec: EvaluationSpec, out: Path
) -> Measuring | None:
    if not (measure.profile or measure.measured or measure.fidelity):
        return None
    from agent.evaluation.measuring import Measuring

    return Measuring(config, spec.clusters, out, measure.measure_timeout)


def _profiled(measuring: Measuring, spec: EvaluationSpec) -> EvaluationSpec:
    from agent.evaluation.terminal_report import measuring_bars

    with measuring_bars() as report:
        return measuring.profile(spec, report)


def _measure(measuring: Measuring, measure: Measure, spec: EvaluationSpec, trials: Sequence[Trial]) -> None:
    """Measures what is to be measured, and prints it."""
    from agent.evaluation.measured_report import fidelity_lines, measured_lines
    from agent.evaluation.terminal_report import measuring_bars, print_lines

    if measure.measured:
        with measuring_bars() as report:
            rows = measuring.best(spec, trials, measure.measured, report)
        print_lines(measured_lines(rows))
    if measure.fidelity:
        with measuring_bars() as report:
            fidelity = measuring.fidelity(spec, measure.fidelity, report)
        print_lines(fidelity_lines(fidelity))


def _tell_left_out(left_out: Sequence[str]) -> None:
    if left_out:
        count = "1 graph is" if len(left_out) == 1 else f"{len(left_out)} graphs are"
        print(f"{count} left out, seen by the policy in training; --include-seen keeps such graphs")


def _compare(
    spec: EvaluationSpec, out: Path, jobs: int, trial_timeout: float | None, engine: str, command: str
) -> tuple[list[Trial], int]:
    """Makes the trials, the tables and the report; returns the trials, and how many failed."""
    from agent.evaluation.run import evaluate
    from agent.evaluation.summary import summarise
    from agent.evaluation.terminal_report import print_tables, progress_bar

    with progress_bar() as (report, show_time_left):
        found = evaluate(
            spec,
            out,
            jobs=jobs,
            trial_timeout_s=trial_timeout,
            make_trials=_trial_maker(engine),
            report=report,
            show_time_left=show_time_left,
            write_partial=lambda found: _write_report(spec, out, found, command),
        )
    lines, n_failed = summarise(found.trials), len(found.failures)
    _write_report(spec, out, found, command)
    print_tables(lines, n_failed)
    print(f"rows: {out / 'results.csv'}\nreport: {out / 'report.html'}\nplacements: {out / 'placements'}")
    return found.trials, n_failed


def _write_report(spec: EvaluationSpec, out: Path, found: EvaluationResult, command: str) -> None:
    """Writes `report.html`, of all trials or of those that are made so far."""
    from agent.evaluation.report.page import write_report

    write_report(
        out / "report.html",
        found.trials,
        command,
        spec=spec,
        n_failed=len(found.failures),
        n_trials=len(spec.tasks()),
    )


def _trial_maker(engine: str) -> TrialMaker:
    if engine == LOCAL:
        from agent.evaluation.processes import run_trials

        return run_trials
    from agent.contexts.ray_evaluation import run_trials_on_ray

    return run_trials_on_ray


def _hand_over(spec: EvaluationSpec, out: Path, trials: Sequence[Trial], trace: bool) -> None:
    """Writes what is handed over with placements, and prints what bounds the best one of a model."""
    from agent.evaluation.handovers import write_handovers
    from agent.evaluation.terminal_report import print_lines

    print_lines(write_handovers(spec, out, trials, trace=trace))


def _write_events(spec: EvaluationSpec, out: Path, trials: Sequence[Trial]) -> None:
    """Writes what TensorBoard shows, and prints where it is."""
    from agent.evaluation.tensorboard.events import write_events

    print(f"tensorboard: {write_events(spec, out, trials)}")


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


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; give a whole number of at least 1")
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
    measure = parser.add_argument_group("measuring a --model on the devices of this machine")
    measure.add_argument(
        "--profile",
        action="store_true",
        default=False,
        help="time its ops first, and place it by these times",
    )
    measure.add_argument(
        "--measured",
        type=_count,
        default=None,
        metavar="K",
        help="measure the K best placements that are found, and one device",
    )
    measure.add_argument(
        "--fidelity",
        type=_count,
        nargs="?",
        const=50,
        default=None,
        metavar="N",
        help="simulate and measure N varied placements (50), and compare",
    )
    measure.add_argument(
        "--measure-timeout",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="give a placement up after S seconds (default: 120)",
    )
    run = parser.add_argument_group(RUN)
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="new, or one to go on in")
    run.add_argument(
        "--trace",
        action="store_true",
        default=False,
        help="write a trace (Perfetto) of every placement kept, not only of a --model's",
    )
    run.add_argument(
        "--tensorboard",
        action="store_true",
        default=False,
        help="write placed graphs, timelines and final ratios for TensorBoard",
    )
    run.add_argument("--jobs", type=_count, default=1, metavar="N", help="processes (default: 1)")
    run.add_argument(
        "--engine",
        choices=(LOCAL, RAY),
        default=LOCAL,
        help="where the processes run; ray: a Ray cluster, that of RAY_ADDRESS or one of its own "
        "(default: local)",
    )
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
