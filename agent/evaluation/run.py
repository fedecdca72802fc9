"""Makes every trial of an evaluation, and goes on with one that was interrupted."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from agent.evaluation.answers import Answers
from agent.evaluation.comparison.summary import summarise, write_summary
from agent.evaluation.config import EvaluationError
from agent.evaluation.results import (
    Failure,
    Trial,
    TrialJournal,
    log_details,
    with_greatest_bounds,
    write_failures,
    write_results,
)
from agent.evaluation.spec import FORMAT, EvaluationSpec
from agent.evaluation.worker import TrialMaker, run_trials
from graphs.system.errors import print_notice
from graphs.system.folders import LOCK, locked
from graphs.system.json_files import DRAFT, read_json, write_json_atomic

TABLES_EVERY_S, REPORT_EVERY_S = 10.0, 30.0
"""Least seconds between two refreshes of the tables and of the report while an evaluation runs."""


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation.

    Attributes:
        trials, failures: together all tasks, each in the order of `EvaluationSpec.tasks`.
        answers: placements of the best seeds.
    """

    trials: list[Trial]
    failures: list[Failure]
    answers: Answers


def evaluate(
    spec: EvaluationSpec,
    folder: Path,
    *,
    jobs: int = 1,
    trial_timeout_s: float | None = None,
    make_trials: TrialMaker = run_trials,
    report: Callable[[int, int], None],
    write_partial: Callable[[EvaluationResult], None] | None = None,
) -> EvaluationResult:
    """Make every trial of an evaluation that a folder does not hold yet.

    Writes `settings.json`, `journal.jsonl` (each trial at once), `placements/` (the best seed of each graph,
    cluster, placer and order) and, every few seconds and at the end or when interrupted, `results.csv`,
    `summary.csv` and `failures.csv`. What fails is not in the journal: the next evaluation in the folder
    tries it again.

    Args:
        folder: new, empty, or one that an evaluation with equal settings was begun in.
        trial_timeout_s: seconds after which a trial is stopped, and tried once more; None = never.
        make_trials: makes them, on this machine or elsewhere.
        report: called with (trials made or failed, trials in all) after each.
        write_partial: writes a report of what is there; called now and then, and when a user interrupts.

    Raises:
        EvaluationError: the folder holds anything else; nothing is written then.
        FolderError: another process writes the folder.
        JournalError: the journal is damaged.
        OSError: the folder cannot be written any more; what was found so far is kept.
    """
    if trial_timeout_s is not None and not 0 < trial_timeout_s < math.inf:
        raise EvaluationError(f"{trial_timeout_s} seconds for a trial; give a finite number above 0")
    tasks = {spec.key(task): task for task in spec.tasks()}
    failures: list[Failure] = []
    with _opened(folder, spec):
        journal, answers = TrialJournal(folder / "journal.jsonl", tasks), Answers(spec, folder)
        answers.tell_damage(journal.trials.values())
        rank = {key: index for index, key in enumerate(tasks)}

        def result_so_far() -> EvaluationResult:
            trials = [journal.trials[key] for key in tasks if key in journal.trials]
            failed = sorted(failures, key=lambda failure: rank[failure.key])
            return EvaluationResult(with_greatest_bounds(trials), failed, answers)

        refreshers = [Refresher(lambda: _write_tables(folder, result_so_far()), every_s=TABLES_EVERY_S)]
        if write_partial is not None:
            refreshers.append(
                Refresher(
                    lambda: write_partial(result_so_far()), every_s=REPORT_EVERY_S, first_s=REPORT_EVERY_S
                )
            )
        missing = [task for key, task in tasks.items() if key not in journal.trials]
        n_before = len(tasks) - len(missing)
        try:
            report(n_before, len(tasks))
            with closing(make_trials(spec, missing, jobs=jobs, timeout_s=trial_timeout_s)) as outcomes:
                for done, (_, outcome) in enumerate(outcomes, n_before + 1):
                    if isinstance(outcome, Failure):
                        failures.append(outcome)
                        log_details(folder, outcome)
                    else:
                        trial, placed = outcome
                        if placed is not None and _is_best(trial, journal, spec.seeds):
                            answers.add(trial, placed)
                        journal.add(trial)
                    report(done, len(tasks))
                    for refresher in refreshers:
                        refresher.poll()
        except KeyboardInterrupt:
            if write_partial is not None and journal.trials:
                print_notice("interrupted; writing a report of what is there, or none if interrupted again")
                write_partial(result_so_far())
            raise
        finally:
            result = result_so_far()
            _write_tables(folder, result)
    return result


def _write_tables(folder: Path, result: EvaluationResult) -> None:
    write_results(folder / "results.csv", result.trials)
    write_summary(folder / "summary.csv", summarise(result.trials))
    write_failures(folder, result.failures)


def open_folder(folder: Path, spec: EvaluationSpec) -> None:
    """Create an evaluation's folder, or check that it may be continued.

    Raises:
        EvaluationError: it holds something else, or an evaluation with other settings.
        FolderError: another process writes it.
        OSError: it cannot be written.
    """
    with _opened(folder, spec):
        pass


@contextmanager
def _opened(folder: Path, spec: EvaluationSpec) -> Iterator[None]:
    """Does what `open_folder` does, and keeps the folder locked."""
    check_content(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _settle(folder / "settings.json", json.loads(json.dumps(spec.to_json())))
        yield


def check_content(folder: Path) -> None:
    """Checks that a folder is new or that of an evaluation; what a killed process leaves counts as nothing.

    Raises:
        EvaluationError: it is something else.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise EvaluationError(f"{folder}: is no directory; give another --out")
    names = [path.name for path in folder.iterdir()]
    if "settings.json" not in names and any(name != LOCK and not fnmatch(name, DRAFT) for name in names):
        raise EvaluationError(f"{folder}: is not empty and holds no evaluation; give another --out")


def _settle(file: Path, settings: dict[str, object]) -> None:
    """Writes the settings of a new evaluation, or compares them with those of the one that was begun."""
    if not file.exists():
        write_json_atomic(file, settings)
        return
    before = read_json(file)
    if not isinstance(before, dict) or before.get("format") != FORMAT:
        raise EvaluationError(f"{file}: is not from an evaluation; give another --out")
    other = [key for key in settings if before.get(key) != settings[key]]
    if other:
        raise EvaluationError(
            f"{file.parent}: holds an evaluation that differs in {', '.join(other)}; give another --out"
        )


def _is_best(trial: Trial, journal: TrialJournal, n_seeds: int) -> bool:
    """Says whether no other seed was better; ties go to the lowest, whichever ended first."""
    others = (journal.trials.get((*trial.key[:-1], seed)) for seed in range(n_seeds))
    return all(other is None or (trial.rank, trial.seed) < (other.rank, other.seed) for other in others)


class Refresher:
    """Calls a function now and then, and less often when it takes long.

    Args:
        every_s: least seconds between the end of a call and the next.
        share: greatest share of the time that the calls may take: after one of t seconds, none is made for
            t / share seconds.
    """

    def __init__(
        self,
        write: Callable[[], None],
        *,
        every_s: float,
        share: float = 0.01,
        first_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every_s, self._share, self._clock = write, every_s, share, clock
        self._next_s = clock() + first_s

    def poll(self) -> bool:
        """Calls the function if it is time; returns whether it was."""
        began_s = self._clock()
        if began_s < self._next_s:
            return False
        self._write()
        ended_s = self._clock()
        self._next_s = ended_s + max(self._every_s, (ended_s - began_s) / self._share)
        return True
