"""Runs a study: opens its folder, runs its trials, and reports their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agent.contexts.local import load_split
from agent.contexts.workers.ray_cluster import ray_cluster
from agent.studies.ablation import ablation_trials
from agent.studies.assignments import Choice, read_space
from agent.studies.record import FAILED, RUNNING, STALE, Attempt, StudyTrial
from agent.studies.scheduler import Report, Scheduler, TrialProcess
from agent.studies.study_config import StudyConfig
from agent.studies.study_folder import Study, open_study
from agent.studies.study_report import closing_lines, duration
from agent.studies.trial_lists import TrialList, grid_trials
from agent.studies.trial_process import TrialOutcome, TrialRequest, TrialTrainer
from agent.training.config import ConfigError, TrainConfig
from agent.training.inputs import read_inputs
from agent.training.split import Split

LISTS: Mapping[str, Callable[[TrainConfig, StudyConfig], TrialList]] = {
    "grid": grid_trials,
    "ablation": ablation_trials,
}
"""Contexts whose trials are known from the start."""


def run_study(base: TrainConfig, config: StudyConfig, console: Console, *, on_ray: bool = False) -> bool:
    """Runs or resumes a study, and prints its results.

    Args:
        on_ray: whether the trials of a search run on a Ray cluster.

    Returns:
        Whether all trials ended and none failed.

    Raises:
        ConfigError: settings that the context does not take, or that a trial cannot be trained with.
        StudyError, JournalError: its folder is another study's, in use, or damaged.
    """
    _check_flags(base, config)
    n_trials, check = _checked(base, config)
    check()
    run = _search_on_ray if on_ray else _in_processes
    with open_study(base, config) as study:
        n_before = len(study.record.attempts)
        with _Screen(console, study, n_trials) as screen:
            all_ended = run(study, screen.report)
        began = len(study.record.attempts) > n_before
        for line in closing_lines(study, all_ended=all_ended, began=began):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        failed = any(each.status == FAILED for each in study.record.attempts.values())
        return all_ended and not failed


def _check_flags(base: TrainConfig, config: StudyConfig) -> None:
    """Refuses flags that would have no effect."""
    takes = {
        "grid": {"vary", "seeds", "cold_control"},
        "ablation": {"without", "seeds", "cold_control"},
        "search": {"vary", "trials", "prune"},
    }[base.context] | {"jobs", "attempts"}
    defaults = StudyConfig()
    for name, value in config.to_json().items():
        if name not in takes and value != defaults.to_json()[name]:
            raise ConfigError(f"--context {base.context} takes no --{name.replace('_', '-')}")


def _checked(base: TrainConfig, config: StudyConfig) -> tuple[int, Callable[[], None]]:
    """Number of trials, and a check that each can be trained, before anything is written."""
    if base.context in LISTS:
        trials = LISTS[base.context](base, config).trials
        return len(trials), lambda: _check_all([trial.config for trial in trials])
    if find_spec("optuna") is None:
        raise ConfigError("--context search needs optuna; pip install 'placewalk[search]'")
    choices = [part for part in read_space(config.vary) if isinstance(part, Choice)]
    each = [replace(base, **{part.field: value}) for part in choices for value in part.values]
    return config.trials, lambda: _check_all([base, *each])


def _check_all(configs: list[TrainConfig]) -> None:
    """Reads what each training names; the same graphs once."""
    splits: dict[object, Split] = {}
    for config in configs:
        named = config.families, config.graphs, config.model, config.holdout, config.validation
        if named not in splits:
            splits[named] = load_split(config)
        read_inputs(config, splits[named])


def _in_processes(study: Study, report: Report) -> bool:
    if study.base.context in LISTS:
        return Scheduler(study, LISTS[study.base.context](study.base, study.config), report).run()
    from agent.studies.search import TrialProposals

    return Scheduler(study, TrialProposals(study), report).run()


def _search_on_ray(study: Study, report: Report) -> bool:
    from agent.studies.search import TrialProposals

    jobs, threads = study.config.jobs, study.base.threads
    with ray_cluster(jobs * threads):
        from agent.contexts.workers.ray_process import RayProcess, ray_answers_of

        def make(trainer: TrialTrainer) -> TrialProcess:
            return RayProcess[TrialRequest, TrialOutcome](trainer, n_cores=threads)

        return Scheduler(study, TrialProposals(study), report, make, ray_answers_of).run()


class _Screen:
    """A bar over the trials; a line for each that ended."""

    def __init__(self, console: Console, study: Study, n_trials: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        done = sum(each.status not in (RUNNING, STALE) for each in study.record.attempts.values())
        self._task = self._progress.add_task(
            f"{study.base.context} {study.name}", total=n_trials, completed=done
        )

    def __enter__(self) -> _Screen:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def report(self, trial: StudyTrial, attempt: Attempt) -> None:
        """Prints how an attempt ended."""
        if attempt.status == RUNNING:
            return
        what = " ".join(filter(None, (attempt.mode if attempt.mode != "grid" else "", attempt.component)))
        parts = [f"{trial.name}  {what}: {attempt.status}"]
        if attempt.best_score is not None:
            parts.append(f"{attempt.best_score:.3f} of one device")
        if attempt.held_out is not None:
            parts.append(f"held out {attempt.held_out:.3f}")
        parts.append(attempt.error or duration(attempt.wall_s))
        self._console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)
        if attempt.status != STALE:
            self._progress.advance(self._task)
