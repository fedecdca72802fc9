"""The search for demonstrations: annealing of every training problem, on all cores, within a time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.placers.base import PLACERS, Budget
from agent.training.checkpoints import CheckpointError, read_tensors, write_tensors
from agent.training.clock import Elapsed
from agent.training.imitation.demonstrations import Demonstration, regrets
from envs.problem import Problem
from graphs.system.running_time import running_s

N_THREADS = os.cpu_count() or 1
SLACK = 1.5
"""The factor by which a search may exceed its estimated share of the time left; estimates are rough."""
FILE = "demonstrations.safetensors"
FORMAT = "placewalk.demonstrations/3"
COUNTS = ("n_asked", "n_complete", "n_partial")


@dataclass(frozen=True, eq=False)
class SearchedPlacements:
    """The placements that a search for demonstrations found.

    Attributes:
        demonstrations: the placements that are feasible.
        n_complete: searches that used all their evaluations.
        n_partial: searches that time ended, but that found a feasible placement.
    """

    demonstrations: tuple[Demonstration, ...]
    n_asked: int
    n_complete: int
    n_partial: int

    @property
    def shortfall(self) -> str:
        """Returns how much of the search was done, where time ended it; else empty."""
        if self.n_complete == self.n_asked:
            return ""
        partial = f", and {self.n_partial} with fewer evaluations" if self.n_partial else ""
        return f"{self.n_complete} of {self.n_asked} placements{partial}"


def search_placements(
    problems: Sequence[Problem],
    *,
    repeats: int,
    evaluations: int,
    seed: int,
    announce: Callable[[str, float], None],
    should_stop: Callable[[], bool],
    seconds: float = math.inf,
) -> SearchedPlacements:
    """Anneals every problem `repeats` times, on all cores; drops placements that are out of memory.

    Args:
        evaluations: of each annealing.
        announce: called with what goes on and which share of it is done.
        should_stop: looked at between problems; what is done by then is returned.
        seconds: for all searches together. Where it is short, the first search of each problem comes before
            the second of any, and each takes no more than `SLACK` times its share.
    """
    jobs = [(problem, repeat) for repeat in range(repeats) for problem in range(len(problems))]
    activity = f"searching {len(jobs)} placements to imitate"
    allotment = _Allotment(problems, seconds)

    def search(job: tuple[int, int]) -> tuple[Demonstration | None, bool]:
        """A demonstration, if it is feasible, and whether its search used all evaluations."""
        problem = job[0]
        limit_s = allotment.take(problem)
        if should_stop() or limit_s <= 0:
            return None, False
        budget = Budget(evaluations, limit_s if limit_s < math.inf else None)
        rng = np.random.default_rng([seed, *job])
        found = PLACERS["annealing"].place(problems[problem], budget, rng)
        complete = found.wall_s < limit_s
        if not found.feasible:
            return None, complete
        device_of = found.placement.device_of
        return Demonstration(problem, device_of, regrets(problems[problem], device_of)), complete

    results = []
    with ThreadPoolExecutor(N_THREADS) as pool:
        for done, result in enumerate(pool.map(search, jobs)):
            announce(activity, done / len(jobs))
            results.append(result)
    return SearchedPlacements(
        tuple(found for found, _ in results if found is not None),
        n_asked=len(jobs),
        n_complete=sum(complete for _, complete in results),
        n_partial=sum(found is not None and not complete for found, complete in results),
    )


class _Allotment:
    """Shares out the time for searches: to each by the size of its graph, among those of the same repeat."""

    def __init__(self, problems: Sequence[Problem], seconds: float) -> None:
        self._sizes = [problem.graph.n_ops for problem in problems]
        self._end_s = running_s() + seconds
        self._waiting = 0
        self._lock = Lock()

    def take(self, problem: int) -> float:
        """Seconds that the next search may take, which is of this problem; 0 or less where none are left."""
        with self._lock:
            if self._waiting <= 0:
                self._waiting = sum(self._sizes)
            share = self._sizes[problem] / self._waiting
            self._waiting -= self._sizes[problem]
        left_s = self._end_s - running_s()
        return min(SLACK * N_THREADS * share, 1.0) * left_s


def write_searched(folder: Path, found: SearchedPlacements, elapsed: Elapsed) -> None:
    """Writes what was found into the folder of a run.

    Args:
        elapsed: what the training has taken until then.
    """
    tensors = {}
    for index, each in enumerate(found.demonstrations):
        tensors[f"{index}/problem"] = np.array(each.problem)
        tensors[f"{index}/device_of"] = np.asarray(each.device_of)
        tensors[f"{index}/regret"] = each.regret
    counts = {name: getattr(found, name) for name in COUNTS}
    state = {"n_found": len(found.demonstrations), **elapsed._asdict(), **counts}
    write_tensors(folder / FILE, FORMAT, tensors, state)


def read_searched(folder: Path, problems: Sequence[Problem]) -> tuple[SearchedPlacements, Elapsed] | None:
    """Reads what `write_searched` wrote, and what had been taken until then; None where there is no file.

    Raises:
        CheckpointError: the file is damaged, of another version, or of other problems.
    """
    path = folder / FILE
    if not path.exists():
        return None
    arrays, state = read_tensors(path, FORMAT)
    try:
        demonstrations = tuple(_demonstration(arrays, at, problems) for at in range(state["n_found"]))
        counts = {name: int(state[name]) for name in COUNTS}
        elapsed = Elapsed(float(state["wall_s"]), float(state["cpu_s"]))
        return SearchedPlacements(demonstrations, **counts), elapsed
    except (LookupError, TypeError, ValueError):
        raise CheckpointError(f"{path}: holds placements of other problems than this run's") from None


def _demonstration(
    arrays: Mapping[str, NDArray[Any]], index: int, problems: Sequence[Problem]
) -> Demonstration:
    """One of the demonstrations; a `ValueError` or `LookupError` if it is not of these problems."""
    at, device_of, regret = (arrays[f"{index}/{name}"] for name in ("problem", "device_of", "regret"))
    problem = problems[int(at)]
    n_ops, n_units, n_devices = problem.graph.n_ops, len(problem.graph.units), problem.n_devices
    if device_of.shape != (n_ops,) or regret.shape != (n_units, n_devices):
        raise ValueError("other shapes")
    if device_of.min() < 0 or device_of.max() >= n_devices:
        raise ValueError("other devices")
    return Demonstration(int(at), device_of, regret)
