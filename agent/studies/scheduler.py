"""Runs several trials of a study at a time; a process that dies costs only an attempt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from agent.studies.record import COMPLETE, FAILED, PRUNED, STALE, Attempt, StudyTrial
from agent.studies.study_folder import Study, StudyError
from agent.studies.trial_process import TrialOutcome, TrialRequest, TrialTrainer, scores_of
from graphs.system.interrupts import handled_by
from graphs.system.worker_process import Death, Process, WorkerProcess, answers_of

Report = Callable[[StudyTrial, Attempt], None]
"""Takes each attempt when it begins, and when it has ended."""
POLL_S = 0.25
"""Seconds between two looks at trials that run."""
TrialProcess = Process[TrialRequest, TrialOutcome]
Answers = Callable[[Collection[Any], float], Iterable[tuple[Any, TrialOutcome | Death]]]
"""Waits some seconds for processes, and yields those that have an answer, with it."""


class TrialSource(Protocol):
    """Supplies the trials of a study; later trials may depend on how earlier ones ended."""

    def next_trial(self) -> StudyTrial | None:
        """Returns another trial to run, or None where there is none, or none as yet."""

    def watch(self, trial: StudyTrial, scores: list[tuple[int, float]]) -> bool:
        """Looks at (update, score) of a trial that runs; returns whether to give it up."""

    def ended(self, trial: StudyTrial, attempt: Attempt) -> None:
        """Takes how a trial ended, once for each trial, also one that ended before the study was stopped."""


@dataclass
class _Slot:
    """A process, the file that makes it stop, and its current trial."""

    process: TrialProcess
    stop: Path
    trial: StudyTrial | None = None
    attempt: Attempt | None = None
    pruned: bool = False


class Scheduler:
    """Runs the trials that a source names.

    A trial whose process dies is resumed from its checkpoint, up to `attempts` times. A slow trial does not
    delay the others. If the disk is full, all trials stop and none counts as failed.

    Args:
        make: makes a process for trials; by default on this machine.
    """

    def __init__(
        self,
        study: Study,
        source: TrialSource,
        report: Report,
        make: Callable[[TrialTrainer], TrialProcess] = lambda trainer: WorkerProcess(
            trainer, None, inherits=True
        ),
        answers: Answers = answers_of,
    ) -> None:
        self.study, self._source, self._report = study, source, report
        self._make, self._answers = make, answers
        self._waiting: list[StudyTrial] = []
        self._tried: dict[str, int] = {}
        self._interrupts = 0

    def run(self) -> bool:
        """Runs all trials; returns False if a signal stopped some of them.

        Raises:
            OSError: the disk is full; the trials resume when the study is run again.
        """
        slots = [self._make_slot(number) for number in range(self.study.config.jobs)]
        try:
            with handled_by(lambda number, frame: self._stop(slots)):
                while self._begin(slots) or any(slot.trial for slot in slots):
                    self._look(slots)
        finally:
            for slot in slots:
                slot.process.kill()
                slot.stop.unlink(missing_ok=True)
        return not self._interrupts

    def _make_slot(self, number: int) -> _Slot:
        stop = self.study.folder / f"stop-{number}"
        return _Slot(self._make(TrialTrainer(stop)), stop)

    def _begin(self, slots: list[_Slot]) -> bool:
        """Gives work to the processes that have none; returns whether one was given any."""
        began = False
        for slot in slots:
            if slot.trial is None and not self._interrupts and (trial := self._next()) is not None:
                self._start(slot, trial)
                began = True
        return began

    def _next(self) -> StudyTrial | None:
        """Takes a trial that is still to be done; tells the source of those that are done."""
        while self._waiting or (found := self._source.next_trial()) is not None:
            trial = self._waiting.pop(0) if self._waiting else found
            assert trial is not None
            before = self.study.record.outcome(trial.name)
            self._check_is_same(trial)
            if before is None:
                return trial
            self._source.ended(trial, before)
        return None

    def _check_is_same(self, trial: StudyTrial) -> None:
        hashes = {attempt.config_hash for attempt in self.study.record.of_trial(trial.name)}
        if hashes - {trial.config_hash}:
            raise StudyError(
                f"{self.study.trial_folder(trial)}: was started with other settings; remove "
                f"{self.study.folder}, or choose another name"
            )

    def _start(self, slot: _Slot, trial: StudyTrial) -> None:
        slot.trial, slot.pruned = trial, False
        slot.attempt = self.study.begin(trial)
        self._report(trial, slot.attempt)
        self._tried[trial.name] = self._tried.get(trial.name, 0) + 1
        slot.stop.unlink(missing_ok=True)
        slot.process.give(TrialRequest(trial.config.to_json(), str(self.study.trial_folder(trial))))

    def _look(self, slots: list[_Slot]) -> None:
        """Waits a moment for an answer, and lets the source look at the trials that run."""
        busy = {slot.process: slot for slot in slots if slot.trial is not None}
        if not busy:
            time.sleep(POLL_S)
            return
        for process, answer in self._answers(busy, POLL_S):
            self._end(busy.pop(process), answer)
        for slot in busy.values():
            if not slot.pruned:
                assert slot.trial is not None
                if self._source.watch(slot.trial, scores_of(self.study.trial_folder(slot.trial))):
                    slot.pruned = True
                    slot.stop.touch()

    def _end(self, slot: _Slot, answer: TrialOutcome | Death) -> None:
        trial, attempt = slot.trial, slot.attempt
        assert trial is not None
        assert attempt is not None
        slot.trial = None
        if isinstance(answer, Death):
            ended = self._after_death(trial, attempt, answer.reason)
        elif answer.no_space:
            raise OSError(answer.no_space, os.strerror(answer.no_space), str(self.study.trial_folder(trial)))
        else:
            ended = attempt.ended(answer, _status(answer, slot.pruned))
        self.study.record.add(ended)
        self._report(trial, ended)
        if ended.status != STALE:
            self._source.ended(trial, ended)

    def _after_death(self, trial: StudyTrial, attempt: Attempt, reason: str) -> Attempt:
        if self._interrupts:
            return replace(attempt, status=STALE)
        if self._tried[trial.name] < self.study.config.attempts:
            self._waiting.append(trial)
            return replace(attempt, status=STALE, error=reason)
        return replace(attempt, status=FAILED, error=f"{reason}, {self._tried[trial.name]} times")

    def _stop(self, slots: list[_Slot]) -> None:
        """Asks every trial to finish its update and save a checkpoint; a second call ends them."""
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        for slot in slots:
            slot.stop.touch()


def _status(answer: TrialOutcome, pruned: bool) -> str:
    if answer.error:
        return FAILED
    if answer.finished:
        return COMPLETE
    return PRUNED if pruned else STALE
