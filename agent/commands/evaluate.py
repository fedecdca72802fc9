"""Compare placements of heuristics, searches, trained policies and placement files."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent.commands.evaluate_flags import COMMAND, NAME, RunFlags, make_parser
from agent.contexts.engine import RAY, check_ray_is_installed
from agent.evaluation.answers import write_exports, write_handovers
from agent.evaluation.comparison.summary import summarise
from agent.evaluation.config import EvaluationConfig, EvaluationError
from agent.evaluation.inputs import make_spec
from agent.evaluation.report.headline import advice_of, learned_line
from agent.evaluation.run import EvaluationResult, check_content, evaluate, open_folder
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import print_lines, print_tables
from agent.evaluation.worker import TrialMaker, run_trials
from agent.placing.exports.export import EXPORTS
from agent.placing.trial_runner import compile_jobs
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.pipeline.pipeline import AUTO
from graphs.capture.user_model import MODEL, make_model
from graphs.system.command_line import interruptible, run_command
from graphs.system.compiling import compile_ahead
from graphs.system.errors import printable
from graphs.system.progress import progress_bars
from graphs.system.registry import load_plugins
from graphs.system.settings import field_types

if TYPE_CHECKING:
    from agent.evaluation.measured.session import MeasuringSession
    from agent.placing.fits import MemoryAnswer

MANY_GRAPHS = 1000
"""Number of graphs from which the report takes seconds to write."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 1 interrupted or failed, 2 wrong input."""
    return run_command(NAME, lambda: _main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(words: Sequence[str]) -> int:
    # Read when torch is loaded. Threads that spin while they wait starve others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = vars(make_parser().parse_args(words))
    out = options.pop("out", None)
    of_run = {name: options.pop(name) for name in field_types(RunFlags) if name in options}
    run = RunFlags.from_json(of_run, "command line")
    config = EvaluationConfig.from_json(options, "command line")
    if run.fit:
        with interruptible():
            print(_fit(config))
        return 0
    if out is None:
        raise EvaluationError("the following arguments are required: --out")
    session = _check_before_capture(run, config, out)
    spec, left_out = make_spec(config)
    measuring = session(config, spec.clusters, out, run.measure_timeout) if session else None
    try:
        with interruptible():
            if measuring and run.profile:
                with progress_bars() as report:
                    spec = measuring.profile(spec, report)
            open_folder(out, spec)
            if spec.pipeline is None:
                finer = ["refine"] if config.model is not None else []  # for the device map
                compile_ahead(compile_jobs([*spec.placers, *finer], spec.clusters))
            if left_out:
                count = "1 graph is" if len(left_out) == 1 else f"{len(left_out)} graphs are"
                print(f"{count} left out because the policy was trained on them; --include-seen keeps them")
            result = _compare(spec, out, run, f"{COMMAND} {shlex.join(words)}")
            if run.trace or config.model is not None:
                print_lines(write_handovers(result.answers, result.trials, trace=run.trace))
            without: Sequence[str] = ()
            if run.export:
                lines, without = write_exports(result.answers, result.trials, run.export, run.export_layers)
                print_lines(lines)
            if measuring:
                _measure(measuring, run, result, out)
    except KeyboardInterrupt:
        print(
            f"{NAME}: interrupted; run the same command again to resume in {printable(str(out))}",
            file=sys.stderr,
        )
        return 1
    if without and not result.failures:
        raise EvaluationError(f"no placement could be exported to {', '.join(without)}")
    return 1 if result.failures else 0


def _fit(config: EvaluationConfig) -> MemoryAnswer:
    """Answers whether training the model of an evaluation fits on its cluster."""
    from agent.placing.fits import fits

    clusters = config.cluster or (DEFAULT_CLUSTER,)
    is_other = config.inference or config.prompt or config.split or config.pipeline
    if config.model is None or len(clusters) > 1 or is_other:
        line = (
            "--fit answers for the training of one --model on one --cluster; give these, and no --inference"
        )
        raise EvaluationError(f"{line}, --prompt, --split or --pipeline")
    made, settings = make_model(config.model), config.capture_settings
    count = config.microbatches or 8
    return fits(*made, cluster=clusters[0], precision=config.precision, microbatches=count, **settings)


def _check_before_capture(
    run: RunFlags, config: EvaluationConfig, out: Path
) -> type[MeasuringSession] | None:
    """Refuses what no model or graph can make right, before any of them is read.

    Returns:
        What measures, if anything is to be measured.

    Raises:
        InputError: flags that do not fit together, a folder of something else, or what this machine lacks.
    """
    check_content(out)
    if run.adapt and not run.measured:
        raise EvaluationError("--adapt corrects the costs by measured placements; give --measured K as well")
    if run.engine == RAY:
        check_ray_is_installed()
    for name in run.export:
        EXPORTS.check(name)
    if not run.measures:
        return None
    if config.pipeline and (run.measured or run.fidelity):
        raise EvaluationError("pipelines are simulated, not measured; leave out --measured and --fidelity")
    if AUTO in (config.pipeline, config.split, config.replicas):
        raise EvaluationError(
            "--profile times one microbatch; give a schedule, --split N and --replicas N, not auto"
        )
    from agent.evaluation.measured.session import MeasuringSession, check_can_measure

    load_plugins(config.plugin)
    check_can_measure(config)
    return MeasuringSession


def _measure(measuring: MeasuringSession, run: RunFlags, result: EvaluationResult, out: Path) -> None:
    """Makes the requested measurements and prints them."""
    if run.measured:
        with progress_bars() as report:
            lines = measuring.best(result.answers, result.trials, run.measured, report, adapts=run.adapt)
        print_lines(lines)
        if run.adapt:
            print(f"placements of the shortest measured steps: {out / 'adapted'}")
    if run.fidelity:
        with progress_bars() as report:
            lines = measuring.fidelity(result.answers.spec, run.fidelity, report)
        print_lines(lines)


def _compare(spec: EvaluationSpec, out: Path, run: RunFlags, command: str) -> EvaluationResult:
    """Makes the trials, the tables and the report."""
    with progress_bars() as report:
        result = evaluate(
            spec,
            out,
            jobs=run.jobs,
            trial_timeout_s=run.trial_timeout,
            make_trials=_trial_maker(run.engine),
            report=partial(report, "trials"),
            write_partial=lambda result: _write_report(out, result, command),
        )
    print_tables(summarise(result.trials), len(result.failures), spec.uncalibrated)
    explained = any(graph.family == MODEL for graph in spec.graphs)  # with the placements
    advice = "" if explained else printable(advice_of(result.trials, result.answers))
    lines = result.answers.host_line(result.trials), advice, learned_line(result.trials)
    if any(lines):
        print_lines(list(filter(None, lines)))
    if len(spec.graphs) >= MANY_GRAPHS:
        print(f"writing a report of {len(spec.graphs):,} graphs ...", file=sys.stderr)
    _write_report(out, result, command)
    print(f"rows: {out / 'results.csv'}\nreport: {out / 'report.html'}\nplacements: {out / 'placements'}")
    return result


def _write_report(out: Path, result: EvaluationResult, command: str) -> None:
    """Writes `report.html`, of all trials or of those that are made so far."""
    from agent.evaluation.report.page import write_report

    write_report(
        out / "report.html",
        result.trials,
        command,
        answers=result.answers,
        n_failed=len(result.failures),
        n_trials=len(result.answers.spec.tasks()),
    )


def _trial_maker(engine: str) -> TrialMaker:
    if engine != RAY:
        return run_trials
    from agent.contexts.ray_process import run_trials_on_ray

    return run_trials_on_ray


if __name__ == "__main__":
    sys.exit(main())
