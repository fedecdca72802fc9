"""A hyperparameter search by Ray Tune, with Optuna's proposals, on a Ray cluster or on this machine.

Tune runs and stops the trials; each keeps its own run's folder and resumes from its own checkpoint. A trial
writes what it is at into its folder, and the study's process takes its record from there.

Tune unpickles what it goes on with, so every start is a new one: the study's record says what was drawn and
how it ended, and nothing that Tune wrote before is read. A function that Tune runs is in no main thread, so
signals are the study's.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import optuna
import ray
from ray import tune

from agent.studies.assignments import Choice, Range, read_space
from agent.studies.ray_proposals import TRIAL, Proposals, values_of
from agent.studies.record import COMPLETE, FAILED, PRUNED, RUNNING, STALE, Attempt, StudyTrial
from agent.studies.scheduler import Report
from agent.studies.search import drawn_before
from agent.studies.study_folder import Study, trial_folder
from agent.studies.trial_lists import sampled
from agent.studies.trial_process import TrialContext, TrialOutcome, TrialRequest, TrialTrainer
from agent.training.config import TrainConfig
from agent.training.metrics import ITERATION, SCORE
from graphs.system.command_line import interruptible
from graphs.system.json_files import read_json, write_json_atomic

POLL_S = 0.5
ATTEMPT = "attempt-{:03d}.json"
"""File of an attempt, in the folder `attempts` beside `trials`."""


@dataclass(frozen=True)
class NeverSet:
    """A flag that is never set; Tune ends the trials that it stops early."""

    def is_set(self) -> bool:
        """Says no."""
        return False


class TunedContext(TrialContext):
    """Trains a trial that Tune watches."""

    def report(self, timesteps: int, metrics: Mapping[str, float]) -> None:
        """Also reports the score of each evaluation to Tune."""
        super().report(timesteps, metrics)
        if SCORE in metrics:
            tune.report({"score": metrics[SCORE], "update": int(metrics[ITERATION])})


class TunedTrainer(TrialTrainer):
    """Trains a trial in a process of Ray."""

    def make_context(self, config: TrainConfig, folder: Path) -> TrialContext:
        """Makes a place that reports to Tune."""
        return TunedContext(config, folder, self.stop)


@dataclass(frozen=True)
class Trainable:
    """The function that Tune runs: one trial, from the values that were drawn for it."""

    base: TrainConfig
    folder: Path
    space: tuple[Choice | Range, ...]
    here: Path

    def __call__(self, drawn: Mapping[str, Any]) -> None:
        os.chdir(self.here)
        trial = sampled(self.base, drawn[TRIAL], values_of(self.space, drawn))
        files = self.folder / "attempts" / trial.name
        files.mkdir(parents=True, exist_ok=True)
        path = files / ATTEMPT.format(len(list(files.iterdir())) + 1)
        about = {"config": trial.config.to_json(), "component": trial.component}
        write_json_atomic(path, {**about, "outcome": None})
        request = TrialRequest(trial.config.to_json(), str(trial_folder(self.folder, trial.name)))
        outcome = TunedTrainer(NeverSet())(request)
        write_json_atomic(path, {**about, "outcome": asdict(outcome)})
        if outcome.error:
            raise RuntimeError(outcome.error)


def run_ray_search(study: Study, report: Report) -> bool:
    """Runs or resumes the trials of a search; returns whether all ended.

    Args:
        report: called with each attempt that begins or ends.

    Raises:
        ConfigError: the space is wrong.
    """
    space = tuple(read_space(study.config.vary))
    one = Trainable(study.base, study.folder.absolute(), space, Path.cwd())
    trainable = tune.with_resources(lambda drawn: one(drawn), {"cpu": study.base.threads})
    record = _Recorder(study, report)
    known = drawn_before(study, space)
    n_left = study.config.trials - len(record.ended)
    if n_left <= 0:
        return True
    own_files = study.folder.absolute() / "ray"
    if own_files.exists():
        shutil.rmtree(own_files)
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # the record says which processes died
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.CRITICAL)
    watcher = Thread(target=record.watch, daemon=True)
    watcher.start()
    try:
        with (study.folder / "ray.log").open("a") as log, redirect_stdout(log), interruptible():
            _tuner(study, Proposals(space, known, study), n_left, trainable).fit()
    except KeyboardInterrupt:
        return False
    finally:
        record.is_over = True
        watcher.join()
        ray.shutdown()
        record.finish()
    return len(record.ended) >= study.config.trials


def _tuner(study: Study, proposals: Proposals, n_trials: int, trainable: Any) -> tune.Tuner:
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            metric="score",
            mode="min",
            search_alg=proposals,
            scheduler=_scheduler(study.config.prune),
            num_samples=n_trials,
            max_concurrent_trials=study.config.jobs,
        ),
        run_config=tune.RunConfig(
            name=study.name,
            storage_path=str(study.folder.absolute() / "ray"),
            failure_config=tune.FailureConfig(max_failures=study.config.attempts - 1),
            verbose=0,
        ),
    )


def _scheduler(prune: str) -> Any:
    if prune == "median":
        return tune.schedulers.MedianStoppingRule(
            time_attr="update",
            grace_period=1,
            min_samples_required=5,
            min_time_slice=math.inf,  # a trial that waits for a process pauses no other
        )
    if prune == "asha":
        return tune.schedulers.ASHAScheduler(time_attr="update", max_t=100_000)
    return None


class _Recorder:
    """Takes the record of a study from the files that its trials write."""

    def __init__(self, study: Study, report: Report) -> None:
        self._study, self._report = study, report
        self.is_over = False
        self._known = {(each.trial, number): each for each, number in self._numbered()}

    @property
    def ended(self) -> set[str]:
        """Names of the trials that are done."""
        attempts = self._study.record.attempts.values()
        return {each.trial for each in attempts if each.status not in (RUNNING, STALE)}

    def watch(self) -> None:
        """Reads new outcomes until the study is over."""
        while not self.is_over:
            self._look()
            time.sleep(POLL_S)

    def finish(self) -> None:
        """Reads the last outcomes: an attempt that did not end was stopped early, or with the study."""
        self._look()
        given_up = _given_up(self._study.folder.absolute() / "ray" / self._study.name)
        for attempt in [each for each in self._study.record.attempts.values() if each.status == RUNNING]:
            self._add(replace(attempt, status=PRUNED if attempt.trial in given_up else STALE))

    def _numbered(self) -> list[tuple[Attempt, int]]:
        attempts = self._study.record.attempts.values()
        return [(each, self._study.record.of_trial(each.trial).index(each) + 1) for each in attempts]

    def _look(self) -> None:
        for path in sorted((self._study.folder / "attempts").glob("*/*.json")):
            key = path.parent.name, int(path.stem.rpartition("-")[2])
            found: Any = read_json(path)
            if key not in self._known:
                self._begin(key, found)
            if self._known[key].status == RUNNING and found["outcome"] is not None:
                self._end(key, TrialOutcome(**found["outcome"]))

    def _begin(self, key: tuple[str, int], found: Mapping[str, Any]) -> None:
        record = self._study.record
        config = TrainConfig.from_json(found["config"], "trial")
        trial = StudyTrial(key[0], config, found["component"], "sampled")
        earlier = record.of_trial(trial.name)
        if earlier and earlier[-1].status == RUNNING:
            self._add(replace(earlier[-1], status=STALE, error="its process died"))
        begun = self._study.begin(trial)
        self._known[key] = begun
        self._report(trial, begun)

    def _end(self, key: tuple[str, int], outcome: TrialOutcome) -> None:
        status = FAILED if outcome.error else COMPLETE if outcome.finished else STALE
        self._known[key] = self._add(self._known[key].ended(outcome, status))

    def _add(self, attempt: Attempt) -> Attempt:
        self._study.record.add(attempt)
        self._report(StudyTrial(attempt.trial, self._study.base, attempt.component, attempt.mode), attempt)
        return attempt


def _given_up(folder: Path) -> set[str]:
    """Names of the trials that Tune ended before they were done, from its own record of the experiment."""
    names = set()
    for path in folder.glob("experiment_state-*.json"):
        with suppress(ValueError, KeyError, TypeError):
            for text, _ in json.loads(path.read_text())["trial_data"]:
                state = json.loads(text)
                if state["status"] == "TERMINATED":
                    names.add(state["config"][TRIAL])
    return names
