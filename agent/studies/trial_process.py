"""A study trial, trained in a process of its own."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from agent.contexts.local import LocalContext
from agent.contexts.outputs import EventWriter
from agent.learn.checkpoints import CheckpointFolder
from agent.learn.config import TrainConfig
from agent.learn.inputs import read_inputs
from agent.learn.metrics import SCORE, UPDATES
from agent.learn.problems import validation_problems
from agent.learn.train import DivergedError, train
from agent.policy.decoding import ratios_over_orders
from agent.policy.serialization import load_policy
from graphs.dataset import Split
from graphs.identity import content_hash
from graphs.system.command_line import FULL
from graphs.system.errors import InputError
from graphs.system.json_files import write_json_atomic
from graphs.system.performance import release_freed_memory

COMPLETE, PRUNED, FAILED, STALE = "complete", "pruned", "failed", "stale"
"""Ends of an attempt: done; stopped by the search; by an error; or stopped or killed, and to be done."""
JUDGEMENT = "held_out.json"
"""File of a study trial with the step time of its policy on each graph that chose nothing."""
Request = tuple[Mapping[str, Any], str, str, Mapping[str, Any]]
"""Request to train a study trial: settings as JSON, its folder, that for TensorBoard, what varies."""
Outcome = Mapping[str, Any] | OSError
"""Columns of the attempt's row, or the error of a full disk, which is no failure of the study trial."""


class TrialContext(LocalContext):
    """Trains a study trial until it ends or the study stops it."""

    def __init__(self, config: TrainConfig, folder: Path, board: EventWriter) -> None:
        quiet = Console(quiet=True, force_terminal=False)
        super().__init__(config, folder, resume=folder.exists(), console=quiet)
        self._board = board

    def make_event_writer(self) -> EventWriter:
        """Returns the output of the study's own folder of events."""
        return self._board

    def should_stop(self) -> bool:
        """Says whether the study has stopped it."""
        return stop_file(self.folder).exists()

    def _catch_signals(self, cleanup: ExitStack) -> None:
        """Leaves signals to the study's process."""


def stop_file(folder: Path) -> Path:
    """Returns the file that stops the study trial of a folder after its update, when it is made."""
    return folder.with_name(f"{folder.name}.stop")


def train_trial(request: Request) -> Outcome:
    """Trains or resumes a study trial; returns failures instead of raising them."""
    try:
        settings, folder, board, varied = request
        config = TrainConfig.from_json(settings, "trial")
        return _train(config, Path(folder), EventWriter(Path(board), varied))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            return OSError(error.errno, error.strerror, request[1])
        kind = "" if isinstance(error, InputError | OSError) else f"{type(error).__name__}: "
        return {"status": FAILED, "error": kind + " ".join(str(error).split())}
    finally:
        release_freed_memory()


def _train(config: TrainConfig, folder: Path, board: EventWriter) -> dict[str, Any]:
    checkpoints = CheckpointFolder(folder / "checkpoints")
    resumed_from = int(checkpoints.files[-1].stem) if checkpoints.files else 0
    context = TrialContext(config, folder, board)
    inputs = read_inputs(config, context.graphs, context.runnable)
    error = ""
    try:
        with context:
            result = train(config, context, inputs)
            context.finish(result)
    except DivergedError as diverged:
        result, error = diverged.result, str(diverged)
    has_policy, scores = math.isfinite(result.best_score), scores_of(folder)
    weights = load_policy(folder).network.parameters() if has_policy else ()
    hashes = {use: [content_hash(graph) for graph in some] for use, some in vars(context.graphs).items()}
    return {
        "status": FAILED if error else COMPLETE if result.finished else STALE,
        "resumed_from_step": resumed_from,
        "graphs_hash": hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16],
        "steps": result.updates,
        "decisions": result.timesteps,
        "wall_s": result.wall_s,
        "parameters": sum(weight.numel() for weight in weights) if has_policy else None,
        "final_score": scores[-1][1] if scores else None,
        "best_score": result.best_score if has_policy else None,
        "held_out": judge(config, context.graphs, folder) if result.finished and has_policy else None,
        "checkpoint": checkpoints.files[-1].name if checkpoints.files else "",
        "error": error,
    }


def judge(config: TrainConfig, graphs: Split, folder: Path) -> float | None:
    """Places the graphs that chose nothing by the policy of a run, and keeps the step times in its folder.

    Every study trial is judged by the simulated step, whatever it was trained with.

    Returns:
        Geometric mean of the step time over that of the fastest single device; None without such graphs.
    """
    problems = validation_problems(graphs.held_out, config)
    if not problems:
        return None
    ratios = ratios_over_orders(load_policy(folder), problems, config.order)
    named = [f"{problem.graph.name} on {problem.cluster.name}" for problem in problems]
    write_json_atomic(folder / JUDGEMENT, dict(zip(named, ratios, strict=True)))
    return float(np.exp(np.mean(np.log(ratios))))


def scores_of(folder: Path) -> list[tuple[int, float]]:
    """Lists update and score of each evaluation in the `metrics.jsonl` of a run, the first one first."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].split(b"\n") if path.exists() else []
    scores = []
    for line in lines:
        with suppress(RecursionError, ValueError):
            row = json.loads(line)
            if row.get(SCORE) is not None:
                scores.append((int(row[UPDATES]), float(row[SCORE])))
    return scores
