"""Compare placements of heuristics, searches, trained policies and placement files."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent.commands.evaluate_flags import LOCAL, NAME, RAY, RunFlags, make_parser
from agent.contexts.workers.ray_cluster import check_ray_is_installed
from agent.evaluation.config import EvaluationConfig, EvaluationError
from envs.pipeline.pipeline import AUTO
from graphs.system.command_line import interruptible, run_command
from graphs.system.errors import printable
from graphs.system.settings import field_types

if TYPE_CHECKING:
    from agent.evaluation.measured.session import MeasuringSession
    from agent.evaluation.processes import TrialMaker
    from agent.evaluation.results import Trial
    from agent.evaluation.run import EvaluationResult
    from agent.evaluation.spec import EvaluationSpec


MANY_GRAPHS = 1000
"""Number of graphs from which the report takes seconds to write."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 1 interrupted or failed, 2 wrong input."""
    return run_command(NAME, lambda: _main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(words: Sequence[str]) -> int:
    # Read when torch is loaded. Threads that spin while they wait starve others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = vars(make_parser().parse_args(words))
    out = options.pop("out")
    given = {name: options.pop(name) for name in field_types(RunFlags) if name in options}
    run = RunFlags.from_json(given, "command line")
    config = EvaluationConfig.from_json(options, "command line")
    _check_before_capture(run, config, out)
    from agent.evaluation.inputs import make_spec
    from agent.evaluation.run import open_folder

    spec, left_out = make_spec(config)
    measuring = _measuring(run, config, spec, out)
    try:
        with interruptible():
            if measuring and run.profile:
                spec = _profiled(measuring, spec)
            open_folder(out, spec)
            _tell_left_out(left_out)
            command = shlex.join(["python", NAME, *words])
            found, n_failed = _compare(spec, out, run, command)
            if run.trace or config.model is not None:
                _hand_over(spec, out, found, run.trace)
            without = _export(spec, out, found, run) if run.export else []
            if run.tensorboard:
                _write_events(spec, out, found)
            if measuring:
                _measure(measuring, run, spec, found, out)
    except KeyboardInterrupt:
        print(
            f"{NAME}: interrupted; run the same command again to resume in {printable(str(out))}",
            file=sys.stderr,
        )
        return 1
    if without and not n_failed:
        raise EvaluationError(f"no placement could be exported to {', '.join(without)}")
    return 1 if n_failed else 0


def _check_before_capture(run: RunFlags, config: EvaluationConfig, out: Path) -> None:
    """Refuses what no model or graph can make right, before any of them is read.

    Raises:
        InputError: flags that do not fit together, a folder of something else, or what this machine lacks.
    """
    from agent.evaluation.run import check_content
    from agent.placing.exports.export import EXPORTS

    check_content(out)
    if run.adapt and not run.measured:
        raise EvaluationError("--adapt corrects the costs by measured placements; give --measured K as well")
    if run.engine == RAY:
        check_ray_is_installed()
    for name in run.export:
        EXPORTS.check(name)
    if run.measures:
        if config.pipeline and (run.measured or run.fidelity):
            raise EvaluationError(
                "pipelines are simulated, not measured; leave out --measured and --fidelity"
            )
        if AUTO in (config.pipeline, config.split):
            raise EvaluationError("--profile times one microbatch; give a schedule and --split N, not auto")
        from agent.evaluation.measured.session import check_can_measure
        from graphs.system.registry import load_plugins

        load_plugins(config.plugin)
        check_can_measure(config)


def _measuring(
    run: RunFlags, config: EvaluationConfig, spec: EvaluationSpec, out: Path
) -> MeasuringSession | None:
    if not run.measures:
        return None
    from agent.evaluation.measured.session import MeasuringSession

    return MeasuringSession(config, spec.clusters, out, run.measure_timeout)


def _profiled(measuring: MeasuringSession, spec: EvaluationSpec) -> EvaluationSpec:
    from graphs.system.progress import progress_bars

    with progress_bars() as report:
        return measuring.profile(spec, report)


def _measure(
    measuring: MeasuringSession, run: RunFlags, spec: EvaluationSpec, trials: Sequence[Trial], out: Path
) -> None:
    """Makes the requested measurements and prints them."""
    from agent.evaluation.measured.terminal_lines import fidelity_lines, measured_lines
    from agent.evaluation.terminal_report import print_lines
    from graphs.system.progress import progress_bars

    if run.measured:
        with progress_bars() as report:
            rows = measuring.best(spec, trials, run.measured, report, adapts=run.adapt)
        print_lines(measured_lines(rows))
        if run.adapt:
            print(f"placements of the shortest measured steps: {out / 'adapted'}")
    if run.fidelity:
        with progress_bars() as report:
            fidelity = measuring.fidelity(spec, run.fidelity, report)
        print_lines(fidelity_lines(fidelity))


def _tell_left_out(left_out: Sequence[str]) -> None:
    if left_out:
        count = "1 graph is" if len(left_out) == 1 else f"{len(left_out)} graphs are"
        print(f"{count} left out because the policy was trained on them; --include-seen keeps them")


def _compare(spec: EvaluationSpec, out: Path, run: RunFlags, command: str) -> tuple[list[Trial], int]:
    """Makes the trials, the tables and the report; returns the trials, and how many failed."""
    from agent.evaluation.comparison.summary import summarise
    from agent.evaluation.report.headline import learned_line
    from agent.evaluation.run import evaluate
    from agent.evaluation.terminal_report import print_lines, print_tables
    from graphs.system.progress import progress_bars

    with progress_bars() as report:
        found = evaluate(
            spec,
            out,
            jobs=run.jobs,
            trial_timeout_s=run.trial_timeout,
            make_trials=_trial_maker(run.engine),
            report=partial(report, "trials"),
            write_partial=lambda found: _write_report(spec, out, found, command),
        )
    lines, n_failed = summarise(found.trials), len(found.failures)
    print_tables(lines, n_failed, spec.uncalibrated)
    if learned := learned_line(found.trials):
        print_lines([learned])
    if len(spec.graphs) >= MANY_GRAPHS:
        print(f"writing a report of {len(spec.graphs):,} graphs ...", file=sys.stderr)
    _write_report(spec, out, found, command)
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
    """Writes the files for other tools, and prints what limits the best placement of a model."""
    from agent.evaluation.terminal_report import print_lines
    from agent.evaluation.written import write_handovers

    print_lines(write_handovers(spec, out, trials, trace=trace))


def _export(spec: EvaluationSpec, out: Path, trials: Sequence[Trial], run: RunFlags) -> list[str]:
    """Writes placements for other runtimes and prints what could not be; returns exports without a file."""
    from agent.evaluation.terminal_report import print_lines
    from agent.evaluation.written import write_exports

    lines, without = write_exports(spec, out, trials, run.export, run.export_layers)
    print_lines(lines)
    return without


def _write_events(spec: EvaluationSpec, out: Path, trials: Sequence[Trial]) -> None:
    """Writes what TensorBoard shows, and prints where it is."""
    from agent.evaluation.tensorboard.events import write_events

    print(f"tensorboard: {write_events(spec, out, trials)}")


if __name__ == "__main__":
    sys.exit(main())
