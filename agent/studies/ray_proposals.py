"""Proposals for Ray Tune: the trials that a study has started, then Optuna's proposals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import tune
from ray.tune.search.optuna import OptunaSearch

from agent.studies.assignments import Choice, Range
from agent.studies.record import COMPLETE, FAILED, PRUNED
from agent.studies.study_folder import Study

TRIAL = "trial"
"""Key of a trial's name among the values that Tune hands to it."""


class Proposals(OptunaSearch):  # type: ignore[misc]
    """Proposes the trials that are still to be done, under their names, and then others.

    Args:
        space: of the search.
        known: what was drawn for each trial by its name, as `drawn_before` returns it.
        study: with its record.
    """

    def __init__(self, space: tuple[Choice | Range, ...], known: Mapping[str, Any], study: Study) -> None:
        ended = {name: study.record.outcome(name) for name in known}
        self._names = [name for name, attempt in ended.items() if attempt is None]
        super().__init__(
            self.convert_search_space({part.field: _domain(part) for part in space}),
            metric="score",
            mode="min",
            seed=study.base.seed + len(known),
            points_to_evaluate=[known[name] for name in self._names],
        )
        for name, attempt in ended.items():
            if attempt is not None:
                value = attempt.best_score if attempt.status == COMPLETE else None
                self.add_evaluated_point(
                    known[name], value, error=attempt.status == FAILED, pruned=attempt.status == PRUNED
                )

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Returns the values of a trial and its name."""
        name = self._names.pop(0) if self._names else trial_id
        return {**super().suggest(trial_id), TRIAL: name}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Does nothing: Tune stops trials here, and a resumed trial repeats its steps."""


def values_of(space: tuple[Choice | Range, ...], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a draw of Tune stands for: of a choice it is the index."""
    return {
        part.field: part.values[drawn[part.field]] if isinstance(part, Choice) else drawn[part.field]
        for part in space
    }


def _domain(part: Choice | Range) -> Any:
    if isinstance(part, Choice):
        return tune.choice(range(len(part.values)))  # lists have no place in Optuna's storage
    if part.is_whole:
        bounds = int(part.least), int(part.most) + 1
        return tune.lograndint(*bounds) if part.is_log else tune.randint(*bounds)
    return (tune.loguniform if part.is_log else tune.uniform)(part.least, part.most)
