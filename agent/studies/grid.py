"""A grid: every combination of some settings' values, each on every seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from agent.studies.assignments import Choice, check_once, parse_choice
from agent.studies.record import StudyTrial
from agent.studies.study_config import StudyConfig
from agent.studies.trial_lists import TrialList, in_words, on_seeds
from agent.training.config import TrainConfig


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
