"""Makes every trial of an evaluation, goes on with one that was interrupted, and keeps the placements."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agent.evaluation.config import EvaluationError
from agent.evaluation.results import Journal, Trial, write_results
from agent.evaluation.spec import FORMAT, EvaluationSpec, Task
from agent.evaluation.worker import runner
from envs.placement.files import write_placement
from envs.placement.placement import Placement
from graphs.io.json_files import read_json, write_json_atomic
from graphs.op_graph import IntArray


def evaluate(
    spec: EvaluationSpec, folder: Path, *, jobs: int = 1, report: Callable[[int, int], None]
) -> list[Trial]:
    """Make every trial of an evaluation that a folder does not hold yet.

    Writes `settings.json`, `journal.jsonl` (each trial at once), `placements/` (the best seed of each graph,
    cluster, placer and order) and, at the end or when interrupted, `results.csv`.

    Args:
        folder: new, empty, or one that an evaluation with equal settings was begun in.
        jobs: processes that make trials.
        report: called with (trials made, trials in all) after each.

    Returns:
        All trials in the order of `EvaluationSpec.tasks`.

    Raises:
        EvaluationError: the folder holds anything else; nothing is written then.
    """
    open_folder(folder, spec)
    tasks = spec.tasks()
    with closing(Journal(folder / "journal.jsonl")) as journal:
        missing = [task for task in tasks if spec.key(task) not in journal.trials]
        kept = len(tasks) - len(missing)
        try:
            report(kept, len(tasks))
            with runner(spec, jobs) as run_all:
                for done, (task, (trial, device_of)) in enumerate(run_all(missing), kept + 1):
                    _write_if_best(folder, spec, journal, task, trial, device_of)
                    journal.add(trial)
                    report(done, len(tasks))
        finally:
            made = [journal.trials[key] for key in map(spec.key, tasks) if key in journal.trials]
            write_results(folder / "results.csv", made)
    return made


def open_folder(folder: Path, spec: EvaluationSpec) -> None:
    """Create an evaluation's folder, or check that it may be continued.

    Raises:
        EvaluationError: it holds something else, or an evaluation with other settings.
    """
    settings = json.loads(json.dumps(spec.to_json()))
    file = folder / "settings.json"
    if folder.exists() and not folder.is_dir():
        raise EvaluationError(f"{folder}: is no directory; give another --out")
    if file.is_file():
        before = read_json(file)
        if not isinstance(before, dict) or before.get("format") != FORMAT:
            raise EvaluationError(f"{file}: is not from an evaluation; give another --out")
        other = [key for key in settings if before.get(key) != settings[key]]
        if other:
            raise EvaluationError(
                f"{folder}: holds an evaluation that differs in {', '.join(other)}; give another --out"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise EvaluationError(f"{folder}: is not empty and holds no evaluation; give another --out")
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json_atomic(file, settings)
        except OSError as error:
            raise EvaluationError(
                f"{folder}: cannot be written: {error.strerror}; give another --out"
            ) from None


def placement_path(folder: Path, trial: Trial) -> Path:
    """Path of the placement of a trial; the file's stem is its placer and order."""
    stem = f"{trial.placer}.{trial.order}" if trial.order else trial.placer
    return (
        folder
        / "placements"
        / _file_name(trial.cluster)
        / _file_name(trial.graph)
        / f"{_file_name(stem)}.json"
    )


def _file_name(name: str) -> str:
    """A name that every file system takes; a digest keeps changed names apart."""
    safe = re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:100]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _write_if_best(
    folder: Path, spec: EvaluationSpec, journal: Journal, task: Task, trial: Trial, device_of: IntArray
) -> None:
    others = (journal.trials.get((*trial.key[:-1], seed)) for seed in range(spec.seeds))
    if all(other is None or trial.rank < other.rank for other in others):
        path = placement_path(folder, trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        graph, cluster = spec.graphs[task.graph], spec.clusters[task.cluster]
        write_placement(path, graph, cluster, Placement(device_of))
