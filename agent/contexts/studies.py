"""Runs a study: opens its folder, runs its trials, and says what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from statistics import fmean, stdev

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agent.contexts.ablation import effects, plan_ablation, table, write_effects
from agent.contexts.assignments import Choice, read_space
from agent.contexts.grid import plan_grid
from agent.contexts.local import load_split
from agent.contexts.plans import ListPlan
from agent.contexts.record import COMPLETE, FAILED, PRUNED, RUNNING, STALE, Attempt, Trial
from agent.contexts.scheduler import Plan, Scheduler
from agent.contexts.study import Study, open_study
from agent.contexts.study_config import StudyConfig
from agent.training.config import ConfigError, TrainConfig
from agent.training.inputs import read_inputs

LISTS: Mapping[str, Callable[[TrainConfig, StudyConfig], ListPlan]] = {
    "grid": plan_grid,
    "ablation": plan_ablation,
}
"""Contexts whose trials are known from the start."""


def run_study(base: TrainConfig, config: StudyConfig, console: Console) -> bool:
    """Runs a study, or goes on with it; prints what comes of it.

    Returns:
        Whether all trials ended and none failed.

    Raises:
        ConfigError: settings that the context does not take, or that a trial cannot be trained with.
        StudyError, RecordError: its folder is another study's, in use, or damaged.
    """
    _check_flags(base, config)
    n_trials, check = _checked(base, config)
    check()
    with open_study(base, config) as study:
        plan = _plan(study)
        n_before = len(study.record.attempts)
        with _Screen(console, study, n_trials) as screen:
            all_ended = Scheduler(study, plan, screen.report).run()
        began = len(study.record.attempts) > n_before
        for line in _closing_lines(study, all_ended=all_ended, began=began):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        failed = any(each.status == FAILED for each in study.record.attempts.values())
        return all_ended and not failed


def _check_flags(base: TrainConfig, config: StudyConfig) -> None:
    """Refuses flags that would have no effect."""
    takes = {
        "grid": {"vary", "seeds", "cold_control"},
        "ablation": {"without", "pairs", "seeds", "cold_control"},
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
    """Reads what each training names; graphs once."""
    split = load_split(configs[0])
    for config in configs:
        read_inputs(config, split)


def _plan(study: Study) -> Plan:
    if study.base.context in LISTS:
        return LISTS[study.base.context](study.base, study.config)
    from agent.contexts.search import SearchPlan

    return SearchPlan(study)


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

    def report(self, trial: Trial, attempt: Attempt) -> None:
        """Prints how an attempt ended."""
        if attempt.status == RUNNING:
            return
        what = " ".join(filter(None, (attempt.mode if attempt.mode != "grid" else "", attempt.component)))
        parts = [f"{trial.name}  {what}: {attempt.status}"]
        if attempt.best_score is not None:
            parts.append(f"{attempt.best_score:.3f} of one device")
        if attempt.held_out is not None:
            parts.append(f"held out {attempt.held_out:.3f}")
        parts.append(attempt.error or _duration(attempt.wall_s))
        self._console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)
        if attempt.status != STALE:
            self._progress.advance(self._task)


def _closing_lines(study: Study, *, all_ended: bool, began: bool) -> list[str]:
    attempts = list(study.record.attempts.values())
    counts = Counter(each.status for each in attempts)
    ended = [f"{counts[status]} {status}" for status in (COMPLETE, PRUNED, FAILED) if counts[status]]
    lines = [f"{study.folder}: {', '.join(ended) or 'no trial ended'}"]
    if not began:
        lines[0] += "; it was finished before, so nothing was run"
    if study.base.context == "ablation" and (found := effects(study.record)):
        write_effects(study.folder, found)
        lines += [*table(found), f"{study.folder / 'effects.csv'}, {study.folder / 'effects.svg'}"]
    else:
        lines += compared(attempts)
    lines.append(f"trials: {study.folder / 'trials.csv'}")
    lines.append(f"curves: tensorboard --logdir {study.folder}")
    if not all_ended:
        lines.append("stopped; the same command goes on")
    return lines


def compared(attempts: list[Attempt]) -> list[str]:
    """A line for each combination of settings, the best first: means over its seeds, and their spread."""
    done = [each for each in attempts if each.status == COMPLETE and each.best_score is not None]
    by_settings: dict[tuple[str, str], list[Attempt]] = {}
    for each in done:
        by_settings.setdefault((each.mode, each.component), []).append(each)
    scores = {key: [each.best_score or 0.0 for each in some] for key, some in by_settings.items()}
    lines = [f"{'/single':>7} {'±':>6} {'held out':>8} {'seeds':>5}  settings"] if done else []
    for key in sorted(scores, key=lambda key: fmean(scores[key])):
        held_out = [each.held_out for each in by_settings[key] if each.held_out is not None]
        spread = f"{stdev(scores[key]):.3f}" if len(scores[key]) > 1 else "-"
        shown = f"{fmean(held_out):.3f}" if held_out else "-"
        settings = " ".join(filter(None, key)).removeprefix("grid ").removeprefix("sampled ")
        n_seeds = len(scores[key])
        lines.append(f"{fmean(scores[key]):>7.3f} {spread:>6} {shown:>8} {n_seeds:>5}  {settings}")
    return lines


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"
