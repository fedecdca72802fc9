"""Runs a study: several study trials at a time, each in a process; one that dies costs only an attempt.

Optuna draws, stores and stops study trials. The loop over processes is our own, as `Study.optimize` runs
threads, gives a search with several of them no seed, and does not repeat what died while others run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from agent.contexts.engine import ray_cluster
from agent.contexts.local import load_split
from agent.learn.config import ConfigError, TrainConfig
from agent.learn.inputs import read_inputs
from agent.studies.record import RUNNING, Attempt, Running, Study, open_study
from agent.studies.study_config import StudyConfig
from agent.studies.study_report import closing_lines, ending_line
from agent.studies.study_trials import (
    Space,
    StudyTrial,
    components_of,
    describe_components,
    settings_of,
    study_trials,
)
from agent.studies.trial_process import FAILED, PRUNED, STALE, Outcome, Request, stop_file, train_trial
from graphs.dataset import Split
from graphs.system.interrupts import handled_by
from graphs.system.worker_process import Death, Process, WorkerProcess

POLL_S = 0.2
"""Seconds between two looks at study trials that run."""
TAKES = {"grid": {"vary", "seeds"}, "ablation": {"without", "seeds"}, "search": {"vary", "trials", "prune"}}
"""Settings that a context takes beside `jobs` and `attempts`."""


def run_study(base: TrainConfig, config: StudyConfig, *, on_ray: bool = False) -> bool:
    """Runs or resumes a study, and prints its results on stderr; or lists the components of an ablation.

    Args:
        on_ray: run the study trials on a Ray cluster.

    Returns:
        Whether all study trials ended and none failed.

    Raises:
        ConfigError: settings that the context does not take, or that no training can have.
        StudyError: its folder is another study's, in use, or damaged.
    """
    if config.without == ("list",):
        print(describe_components())
        return True
    console = Console(stderr=True)
    for name, value in config.to_json().items():
        if name not in TAKES[base.context] | {"jobs", "attempts"} and value != StudyConfig().to_json()[name]:
            raise ConfigError(f"--context {base.context} takes no --{name.replace('_', '-')}")
    if base.context == "ablation" and not config.without:
        config = replace(config, without=components_of(base))
    trials, space = study_trials(base, config)
    _check_all(base, trials, space)
    with open_study(base, config, space) as study:
        cluster = ray_cluster(config.jobs * base.threads) if on_ray else nullcontext()
        with cluster, _reports(console, study, len(trials)) as report:
            all_ended = Scheduler(study, trials, report, on_ray=on_ray).run()
        for line in closing_lines(study, all_ended=all_ended):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return all_ended and not any(attempt.status == FAILED for attempt in study.attempts)


class Scheduler:
    """Runs the trials of a study.

    A study trial whose process dies is resumed from its checkpoint, up to `attempts` times. A slow one does
    not delay the others. If the disk is full, all stop and none counts as failed.
    """

    def __init__(
        self, study: Study, trials: Sequence[StudyTrial], report: Callable[[Attempt], None], *, on_ray: bool
    ) -> None:
        self._study, self._report = study, report
        done = {attempt.trial for attempt in study.attempts if attempt.status not in (RUNNING, STALE)}
        self._waiting = [trial for trial in trials if trial.name not in done]
        n_cores = study.base.threads if on_ray else 0
        self._idle = [_process(n_cores) for _ in range(study.config.jobs)]
        self._busy: dict[Process[Request, Outcome], Running] = {}
        self._interrupts = 0

    def run(self) -> bool:
        """Runs all study trials; returns False if a signal stopped some of them.

        Raises:
            OSError: the disk is full; the study trials resume when the study is run again.
        """
        self._remove_stops()
        try:
            with handled_by(lambda number, frame: self._stop()):
                self._begin()
                while self._busy:
                    self._look()
                    self._begin()
        finally:
            for process in (*self._idle, *self._busy):
                process.kill()
            self._remove_stops()
        return not self._interrupts

    def _begin(self) -> None:
        """Gives waiting study trials to idle processes."""
        while self._idle and self._waiting and not self._interrupts:
            running = self._study.begin(self._waiting.pop(0))
            process = self._idle.pop()
            self._busy[process] = running
            varied = {"trial": running.trial.name, **(running.trial.params or {})}
            board = str(self._study.folder / running.trial.in_tensorboard)
            process.give((running.trial.config.to_json(), str(running.folder), board, varied))

    def _look(self) -> None:
        """Waits a moment for answers, and stops study trials that fall behind."""
        time.sleep(POLL_S)
        for process, running in list(self._busy.items()):
            if (answer := process.answer()) is not None:
                self._idle.append(process)
                del self._busy[process]
                stop_file(running.folder).unlink(missing_ok=True)
                self._report(self._study.end(running, self._result(running, answer)))
                continue
            running.is_pruned = running.is_pruned or self._study.falls_behind(running)
            if running.is_pruned or self._interrupts:
                stop_file(running.folder).touch()

    def _result(self, running: Running, answer: Outcome | Death) -> Mapping[str, Any]:
        """Columns of the row of an attempt that has ended; a study trial whose process died waits again."""
        if isinstance(answer, OSError):
            raise answer
        if not isinstance(answer, Death):
            return {**answer, "status": PRUNED} if running.is_pruned and answer["status"] == STALE else answer
        if self._interrupts:
            return {"status": STALE}
        begun_now = self._study.attempts[self._study.n_before :]
        n_attempts = sum(attempt.trial == running.trial.name for attempt in begun_now)
        if n_attempts >= self._study.config.attempts:
            return {"status": FAILED, "error": f"{answer.reason}, {n_attempts} times"}
        self._waiting.insert(0, running.trial)
        return {"status": STALE, "error": answer.reason}

    def _stop(self) -> None:
        """Asks every study trial to finish its update and save a checkpoint; a second call ends them."""
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt

    def _remove_stops(self) -> None:
        for stop in (self._study.folder / "trials").glob("*.stop"):
            stop.unlink()


def _check_all(base: TrainConfig, trials: Sequence[StudyTrial], space: Space) -> None:
    """Reads what each training names, the same graphs once; of a search, every listed value once."""
    configs = [trial.config for trial in trials if trial.params is not None] or [base]
    if base.context == "search":
        listed = [(name, value) for name in space for value in getattr(space[name], "choices", ())]
        configs += [replace(base, **settings_of({name: value})) for name, value in listed]
    splits: dict[object, Split] = {}
    for config in configs:
        named = config.families, config.graphs, config.model, config.holdout, config.validation
        if named not in splits:
            splits[named] = load_split(config)
        read_inputs(config, splits[named])


def _process(n_cores: int) -> Process[Request, Outcome]:
    """Makes a process for study trials, on this machine or with that many cores of a Ray cluster."""
    if not n_cores:
        return WorkerProcess(train_trial, None, inherits=True)
    from agent.contexts.ray_process import RayProcess

    return RayProcess(train_trial, n_cores=n_cores)


@contextmanager
def _reports(console: Console, study: Study, n_trials: int) -> Iterator[Callable[[Attempt], None]]:
    """Shows a bar over the study trials, and a line for each attempt that ends."""
    columns = *Progress.get_default_columns(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        done = sum(attempt.status not in (RUNNING, STALE) for attempt in study.attempts)
        task = progress.add_task(f"{study.base.context} {study.base.name}", total=n_trials, completed=done)

        def report(attempt: Attempt) -> None:
            console.print(ending_line(attempt), markup=False, highlight=False, soft_wrap=True)
            progress.advance(task, attempt.status != STALE)

        yield report
