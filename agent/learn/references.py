"""The step times that a training compares its policy with: those of annealing, kept in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from agent.placers.base import PLACERS, Budget
from envs.problem import Problem
from graphs.system import json_fields
from graphs.system.json_files import FileFormatError, read_json, write_json_atomic

Item = TypeVar("Item")
ANNEALING_EVALUATIONS = 10_000
FORMAT = "placewalk.references/1"


def some(items: Sequence[Item], most: int = 16) -> list[Item]:
    """Draws at most that many items, the same each time, in their order."""
    chosen = np.random.default_rng(0).permutation(len(items))[:most]
    return [items[index] for index in np.sort(chosen)]


def annealed_s(problems: Sequence[Problem], tell: Callable[[float], None] = lambda _: None) -> list[float]:
    """Step times that annealing finds with a fixed seed, or of one device if it finds no feasible placement.

    Args:
        tell: called with the share that is done.
    """

    def search(problem: Problem) -> float:
        result = PLACERS["annealing"].place(problem, Budget(ANNEALING_EVALUATIONS), np.random.default_rng(0))
        return result.step_time.total_s if result.feasible else problem.scale_s

    total_s: list[float] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found_s in pool.map(search, problems):
            tell(len(total_s) / len(problems))
            total_s.append(found_s)
    return total_s


def annealing_s(
    problems: Sequence[Problem], path: Path | None, announce: Callable[[str, float], None]
) -> list[float]:
    """Returns `annealed_s` of some problems, from a file if it has them.

    Args:
        path: file that keeps them for the same problems; it is written if they are not there. None for none.
            All is repeatable, so a file that is damaged is written anew; `announce` is told.
        announce: called with what goes on and which share of it is done.
    """
    keys = [f"{problem.graph.name} on {problem.cluster.name}" for problem in problems]
    try:
        if path is not None and (stored_s := _read(path, keys)) is not None:
            return stored_s
    except FileFormatError as error:
        announce(f"{error}; its content will be computed again", 0.0)
    activity = f"annealing {len(problems)} graphs to compare with"
    total_s = annealed_s(problems, partial(announce, activity))
    rows = [[key, found_s] for key, found_s in zip(keys, total_s, strict=True)]
    if path is not None:
        record = {"format": FORMAT, "evaluations": ANNEALING_EVALUATIONS, "annealing_s": rows}
        write_json_atomic(path, record)
    return total_s


def _read(path: Path, keys: Sequence[str]) -> list[float] | None:
    """The references of these problems, if the file holds them and no others.

    Raises:
        FileFormatError: the file is damaged.
    """
    if not path.exists():
        return None
    record, where = read_json(path), f"{path}: annealing_s"
    values = json_fields.fields(record, str(path), {"format", "evaluations", "annealing_s"}, format=FORMAT)
    names, found_s = [], []
    for row in json_fields.array(values["annealing_s"], where):
        if len(json_fields.array(row, where)) != 2:
            raise FileFormatError(f"{where}: holds a row of {len(row)} values; expected a name and seconds")
        names.append(json_fields.text(row[0], where))
        found_s.append(json_fields.number(row[1], where))
    if any(step_s <= 0 for step_s in found_s):
        raise FileFormatError(f"{where}: holds a step time that is not positive")
    return found_s if names == list(keys) else None
