"""A hyperparameter search by Optuna, which proposes trials and says which to give up.

Optuna keeps what it knows in `optuna.db` in the study's folder. Only the study's process talks to it, so a
trial that was killed is known from the study's record, and goes on from its checkpoint under its own number.
"""

from __future__ import annotations

from typing import Any

import optuna
from optuna.trial import TrialState

from agent.contexts.assignments import Choice, Range, read_space
from agent.contexts.plans import sampled
from agent.contexts.record import COMPLETE, PRUNED, Attempt, Trial
from agent.contexts.study import Study

FILE = "optuna.db"
TOLD = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}
WARM_UP = 5
"""Trials that end before the median gives any up."""


class SearchPlan:
    """Proposes trials by TPE until there are as many as were asked for; a trial's value is its best score.

    Source: TPE, Bergstra et al. 2011; ASHA, Li et al. 2020 (arXiv 1810.05934).

    Raises:
        ConfigError: the space is wrong, or other seeds than one are asked for.
    """

    def __init__(self, study: Study) -> None:
        self._study, self._space = study, read_space(study.config.vary)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = (study.folder / FILE).absolute()
        self._optuna = optuna.create_study(
            storage=f"sqlite:///{path}",
            study_name=study.name,
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=study.base.seed, constant_liar=True),
            pruner=_pruner(study.config.prune),
        )
        self._trials: dict[str, optuna.Trial] = {}
        self._known = self._proposed_before()
        self._reported: dict[str, int] = {}

    def next_trial(self) -> Trial | None:
        """Proposes another trial, those first that were proposed before the study was stopped."""
        if self._known:
            return self._trial(self._known.pop(0))
        if len(self._optuna.get_trials(deepcopy=False)) >= self._study.config.trials:
            return None
        return self._trial(self._optuna.ask())

    def watch(self, trial: Trial, scores: list[tuple[int, float]]) -> bool:
        """Tells Optuna the scores; returns whether it gives the trial up."""
        proposed = self._trials[trial.name]
        known = self._reported.get(trial.name, 0)
        for update, score in scores[known:]:
            proposed.report(score, update)
        self._reported[trial.name] = len(scores)
        return len(scores) > known and bool(proposed.should_prune())

    def ended(self, trial: Trial, attempt: Attempt) -> None:
        """Tells Optuna how a trial ended, unless it knows."""
        proposed = self._trials[trial.name]
        state = TOLD.get(attempt.status, TrialState.FAIL)
        value = attempt.best_score if state is TrialState.COMPLETE else None
        self._optuna.tell(proposed.number, value, state, skip_if_finished=True)

    def _proposed_before(self) -> list[optuna.Trial]:
        trials = self._optuna.get_trials(deepcopy=False)
        return [optuna.Trial(self._optuna, each._trial_id) for each in trials]

    def _trial(self, proposed: optuna.Trial) -> Trial:
        values = {part.field: _suggest(proposed, part) for part in self._space}
        trial = sampled(self._study.base, f"{proposed.number:03d}", values)
        self._trials[trial.name] = proposed
        return trial


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
