"""How the trials of an evaluation are made: in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from agent.evaluation.bounds import lower_bound_s
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec, Task
from agent.placers.base import PLACERS, Budget, PlacementResult, Placer, SearchState
from agent.placers.coarse import place_coarsely
from agent.policy.placers import LEARNED, learned_placer
from envs.coarse_problem import coarse_problem
from envs.problem import Problem
from graphs.op_graph import IntArray, build_graph

if TYPE_CHECKING:
    from agent.policy.policy import Policy

_SMALL_GRAPH = build_graph(
    "warm-up", "", [{"name": "a", "flops": 1e9}, {"name": "b", "flops": 1e9}], [(0, 1e6, [1])]
)

Outcome = tuple[Task, tuple[Trial, IntArray]]
RunAll = Callable[[Iterable[Task]], Iterator[Outcome]]


class Worker:
    """Makes the trials of a study; keeps the policy and the present problem between them."""

    def __init__(self, study: EvaluationSpec) -> None:
        self.study = study
        self._at = (-1, -1)
        self._warm: set[str] = set()

    @cached_property
    def _policy(self) -> Policy:
        from agent.policy.serialization import load_policy

        return load_policy(self.study.policy)

    def run(self, task: Task) -> tuple[Trial, IntArray]:
        """Make one trial; returns it and the device of each op."""
        problem = self._load(task)
        placer = self._placer(task)
        self._warm_up(task, placer)
        name = f"{problem.graph.name}/{task.placer}/{task.order}"
        rng = np.random.default_rng([task.seed, crc32(name.encode())])
        if self._coarse is None or self._is_given(task):
            found = placer.place(problem, self.study.budget, rng)
        else:
            found = place_coarsely(placer, self._coarse, self.study.budget, rng)
        return self._trial(task, problem, found), found.placement.device_of

    def _load(self, task: Task) -> Problem:
        if (task.graph, task.cluster) != self._at:
            self._at = (task.graph, task.cluster)
            self._problem = Problem(self.study.graphs[task.graph], self.study.clusters[task.cluster])
            self._bound_s = lower_bound_s(self._problem)
            n_groups = self.study.coarsen
            self._coarse = None if n_groups is None else coarse_problem(self._problem, n_groups)
        return self._problem

    def _placer(self, task: Task) -> Placer:
        _, _, name, order, _ = key = self.study.key(task)
        if self._is_given(task):
            device_of = self.study.given[key[:3]]
            return Placer(name, lambda search, rng: _score_given(search, device_of), uses_rng=False)
        return learned_placer(name, self._policy, order) if name in LEARNED else PLACERS[name]

    def _is_given(self, task: Task) -> bool:
        """Whether a task scores a placement given for just its graph and cluster."""
        return self.study.key(task)[:3] in self.study.given

    def _warm_up(self, task: Task, placer: Placer) -> None:
        """Compile what the placer needs, so that its wall time is its own."""
        if task.placer not in self._warm and not self._is_given(task):
            placer.place(Problem(_SMALL_GRAPH, self._problem.cluster), Budget(4), np.random.default_rng(0))
        self._warm.add(task.placer)

    def _trial(self, task: Task, problem: Problem, found: PlacementResult) -> Trial:
        return Trial(
            graph=problem.graph.name,
            family=problem.graph.family,
            cluster=problem.cluster.name,
            order=task.order,
            placer=task.placer,
            seed=task.seed,
            step_time_s=float(found.step_time.total_s),
            feasible=found.feasible,
            evaluations=found.evaluations,
            wall_s=found.wall_s,
            lower_bound_s=self._bound_s,
            single_s=problem.scale_s,
            seen=problem.graph.name in self.study.seen,
        )


def _score_given(search: SearchState, device_of: IntArray) -> None:
    search.score(device_of[None])


@contextmanager
def runner(study: EvaluationSpec, jobs: int) -> Iterator[RunAll]:
    """A function that makes trials: here, or in `jobs` processes, which end with the context."""
    if jobs == 1:
        worker = Worker(study)
        yield lambda tasks: ((task, worker.run(task)) for task in tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _start_process, (study,)) as pool:
        yield lambda tasks: pool.imap_unordered(_run_in_process, tasks)


def _start_process(study: EvaluationSpec) -> None:
    global _process_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _process_worker = Worker(study)


def _run_in_process(task: Task) -> Outcome:
    return task, _process_worker.run(task)


_process_worker: Worker
