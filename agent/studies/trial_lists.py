"""Lists of trials that are known from the start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.studies.assignments import ELEMENTS, Choice, check_once, parse_choice
from agent.studies.record import Attempt, StudyTrial
from agent.studies.study_config import StudyConfig
from agent.training.config import ConfigError, TrainConfig


class TrialList:
    """A list of trials, none of which depends on how others end."""

    def __init__(self, trials: Sequence[StudyTrial]) -> None:
        self.trials = tuple(trials)
        self._left = list(trials)

    def next_trial(self) -> StudyTrial | None:
        """Returns the next of the list."""
        return self._left.pop(0) if self._left else None

    def watch(self, trial: StudyTrial, scores: list[tuple[int, float]]) -> bool:
        """Gives no trial up."""
        return False

    def ended(self, trial: StudyTrial, attempt: Attempt) -> None:
        """Does nothing."""


def on_seeds(trials: Sequence[StudyTrial], config: StudyConfig) -> list[StudyTrial]:
    """Repeats trials on every seed, all trials on a seed before the next; with cold controls where asked for.

    Raises:
        ConfigError: cold controls are asked for, but trials start from no policy.
    """
    if config.cold_control and not any(trial.config.init for trial in trials):
        raise ConfigError("--cold-control trains without --init too; give --init")
    found = []
    for seed in range(config.seeds):
        for trial in trials:
            seeded = replace(trial.config, seed=trial.config.seed + seed, context="local")
            name = f"{trial.name}-seed-{seeded.seed}"
            found.append(replace(trial, name=name, config=replace(seeded, name=name)))
            if config.cold_control and seeded.init:
                cold = replace(seeded, init="", name=f"{name}-cold")
                found.append(StudyTrial(cold.name, cold, trial.component, "cold"))
    return found


def sampled(base: TrainConfig, name: str, values: Mapping[str, Any]) -> StudyTrial:
    """Makes a trial of a search from the values that were drawn for it."""
    words = " ".join(f"{key}={in_words(value)}" for key, value in values.items())
    return StudyTrial(name, replace(base, **values, name=name, context="local"), words, "sampled")


def in_words(value: object) -> str:
    """Formats the value of a setting as on the command line, with three digits for numbers."""
    if isinstance(value, tuple):
        return ELEMENTS.join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def grid_trials(base: TrainConfig, config: StudyConfig) -> TrialList:
    """Lists the trials of a grid.

    Raises:
        ConfigError: a setting that cannot be varied, is varied twice, or cannot have a value.
    """
    choices = [parse_choice(text) for text in config.vary]
    check_once([choice.field for choice in choices])
    return TrialList(on_seeds(list(_combinations(base, choices)), config))


def _combinations(base: TrainConfig, choices: Sequence[Choice]) -> Iterator[StudyTrial]:
    for number, values in enumerate(itertools.product(*(choice.values for choice in choices))):
        changed = {choice.field: value for choice, value in zip(choices, values, strict=True)}
        words = " ".join(f"{name}={in_words(value)}" for name, value in changed.items())
        yield StudyTrial(f"{number:03d}", replace(base, **changed), words, "grid" if changed else "base")
