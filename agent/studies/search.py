"""A hyperparameter search by Optuna, which proposes trials and stops bad ones early.

What Optuna knows is in memory alone; a study that goes on tells it again what the study's record holds. So a
trial that was killed goes on from its checkpoint under its own number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from agent.studies.assignments import Choice, Range, read_space
from agent.studies.record import COMPLETE, PRUNED, Attempt, RecordError, StudyTrial
from agent.studies.study_folder import Study
from agent.studies.trial_lists import sampled
from agent.studies.trial_process import scores_of
from agent.training.config import TrainConfig

TOLD = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}
WARM_UP = 5
"""Trials that end before the median gives any up."""


class TrialProposals:
    """Proposes trials by TPE until there are as many as were asked for; a trial's value is its best score.

    Source: TPE, Bergstra et al. 2011; ASHA, Li et al. 2020 (arXiv 1810.05934).

    Raises:
        ConfigError: the space is wrong, or other seeds than one are asked for.
    """

    def __init__(self, study: Study) -> None:
        self._study, self._space = study, read_space(study.config.vary)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._known = drawn_before(study, self._space)
        self._optuna = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=study.base.seed + len(self._known), constant_liar=True),
            pruner=_pruner(study.config.prune),
        )
        self._trials: dict[str, optuna.Trial] = {}
        self._reported: dict[str, int] = {}

    def next_trial(self) -> StudyTrial | None:
        """Proposes another trial, those first that were proposed before the study was stopped."""
        if self._known:
            name = next(iter(self._known))
            self._optuna.enqueue_trial(self._known.pop(name))
        elif len(self._trials) < self._study.config.trials:
            name = f"{len(self._trials):03d}"
        else:
            return None
        proposed = self._trials[name] = self._optuna.ask()
        values = {part.field: _suggest(proposed, part) for part in self._space}
        return sampled(self._study.base, name, values)

    def watch(self, trial: StudyTrial, scores: list[tuple[int, float]]) -> bool:
        """Tells Optuna the scores; returns whether it gives the trial up."""
        proposed = self._trials[trial.name]
        known = self._reported.get(trial.name, 0)
        for update, score in scores[known:]:
            proposed.report(score, update)
        self._reported[trial.name] = len(scores)
        return len(scores) > known and bool(proposed.should_prune())

    def ended(self, trial: StudyTrial, attempt: Attempt) -> None:
        """Tells Optuna how a trial ended, and the scores that it does not know."""
        proposed = self._trials[trial.name]
        self.watch(trial, scores_of(self._study.trial_folder(trial)))
        state = TOLD.get(attempt.status, TrialState.FAIL)
        value = attempt.best_score if state is TrialState.COMPLETE else None
        self._optuna.tell(proposed.number, value, state, skip_if_finished=True)


def drawn_before(study: Study, space: Sequence[Choice | Range]) -> dict[str, dict[str, Any]]:
    """Reads from a study's record what was drawn for each of its trials, in the order in which they began.

    Returns:
        Number that was drawn for each setting, of a choice its index, by the name of the trial.

    Raises:
        RecordError: a trial has a setting that the space lacks.
    """
    base, found = study.base.to_json(), {}
    for attempt in study.record.attempts.values():
        try:
            values = TrainConfig.from_json({**base, **json.loads(attempt.config)}, "trial")
            found[attempt.trial] = {part.field: _drawn(part, getattr(values, part.field)) for part in space}
        except (TypeError, ValueError):
            raise RecordError(
                f"{study.folder / 'attempts.jsonl'}: attempt {attempt.attempt} was not drawn from the space "
                "of this search; remove its lines"
            ) from None
    return found


def _drawn(part: Choice | Range, value: Any) -> Any:
    if isinstance(part, Choice):
        return part.values.index(value)
    if not part.least <= value <= part.most:
        raise ValueError
    return value


def _suggest(proposed: optuna.Trial, part: Choice | Range) -> Any:
    if isinstance(part, Choice):
        # Lists have no place in Optuna's storage.
        return part.values[proposed.suggest_categorical(part.field, list(range(len(part.values))))]
    if part.is_whole:
        return proposed.suggest_int(part.field, int(part.least), int(part.most), log=part.is_log)
    return proposed.suggest_float(part.field, part.least, part.most, log=part.is_log)


def _pruner(name: str) -> optuna.pruners.BasePruner:
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=WARM_UP)
    if name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner()
    return optuna.pruners.NopPruner()
