"""The one training function: a configuration and a context in, a trained policy out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from agent.policy.policy import torch_threads
from agent.training.checkpoints import Checkpoint, restoring
from agent.training.clock import Clock
from agent.training.config import TrainConfig
from agent.training.context import Context
from agent.training.imitation.phases import Imitation, OnPolicyImitation, SearchForDemonstrations
from agent.training.inputs import Inputs, read_inputs
from agent.training.metrics import (
    CPU_S,
    ITERATION,
    PHASE,
    PHASES,
    PLACED,
    PROGRESS,
    SCORE,
    SPEED,
    WALL_S,
    step_time_name,
)
from agent.training.performance import bf16_matmul, tune_malloc
from agent.training.phase import Phase
from agent.training.reinforcement.phase import Reinforcement
from agent.training.selection import PolicySelection
from agent.training.state import TrainingState
from agent.training.validation import RelativeMetrics
from agent.training.workers import FIRST, any_worker, time_of_first

EARLY_SHARE = 0.05
"""Share of a training's time that evaluations before the regular ones may take together."""
EARLY = frozenset(round(2 ** (k / 2)) for k in range(64))
"""Numbers of updates after which such evaluations are made."""
GAINS = {"score": SCORE} | {use: step_time_name(use, "single") for use in ("validation", "held_out")}
"""Greedy step times over one device, by their names in `Result.reinforcement`."""


@dataclass(frozen=True)
class Result:
    """The result of a training.

    Attributes:
        timesteps, iterations: decisions of reinforcement and updates made.
        wall_s: seconds, those before interruptions included.
        best_score: geometric mean of the greedy step time over that of one device, on the graphs for training
            and validation and the clusters as they are, by the policy that was kept. Infinite in a worker
            that is not the first.
        best_timesteps: when that policy was found, decisions imitated included; 0 = at the start.
        finished: whether it used up its decisions or its time, rather than being stopped.
        reinforcement: `GAINS` before and after reinforcement, each greedy; empty where there was none.
        cut_short: phases that time ended before they had done what was asked for, each with what they did.
        failure: why it ended, if it diverged; one line.
    """

    timesteps: int
    iterations: int
    wall_s: float
    best_score: float
    best_timesteps: int
    finished: bool
    reinforcement: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    cut_short: tuple[str, ...] = ()
    failure: str = ""


class DivergedError(RuntimeError):
    """A training whose losses, gradients, weights or scores are not finite any more; one line says where.

    What was saved before is kept: the best policy and the last checkpoint.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(result.failure)
        self.result = result


def train(config: TrainConfig, context: Context, inputs: Inputs | None = None) -> Result:
    """Trains a policy; keeps the one that does best on the graphs for training and validation.

    Goes on from the context's newest checkpoint where there is one. Writes the policy into the context's
    folder whenever a better one is found.

    Args:
        inputs: what `read_inputs` returned, if it was called before.

    Raises:
        ValueError: what `read_inputs` raises, or a file of the run that cannot be read or is not of it.
        DivergedError: a number that the policy learns from is not finite; none is kept.
    """
    inputs = inputs or read_inputs(config, context.graphs, context.runnable)
    tune_malloc()
    timer = inputs.step_timer
    with torch_threads(1), timer.storing_in(context.folder) if timer else nullcontext():
        return _Training(config, context, inputs).run()


class _Training:
    def __init__(self, config: TrainConfig, context: Context, inputs: Inputs) -> None:
        self.config, self.context = config, context
        saved = context.checkpoints.latest(lambda line: context.announce(line, 0.0))
        group = context.group
        clock = Clock(config.limit_s, None if group.size == 1 else partial(time_of_first, group))
        self.state = TrainingState(config, context, inputs, clock)
        search = SearchForDemonstrations(self.state)
        imitation = Imitation(self.state, search)
        phases: list[Phase] = [
            search,
            imitation,
            OnPolicyImitation(self.state, imitation),
            Reinforcement(self.state, RelativeMetrics(self.state.problems)),
        ]
        self.phases = [phase for phase in phases if phase.is_on]
        self._evaluations_s = 0.0
        self._evaluated: list[dict[str, float]] = [{}, {}]  # before and, so far, after reinforcement
        clock.share_out({phase.name: phase.share for phase in self.phases})
        if saved is not None:
            with restoring(saved):
                self.state.restore(saved)
        self._selection = PolicySelection(self.state, inputs.seen) if group.rank == FIRST else None
        if saved is not None:
            with restoring(saved):
                self._restore(saved)

    def run(self) -> Result:
        """Goes through the phases until each is done or its time is up, or the context wants to stop."""
        self._agree_to_stop()
        if self.config.leaves_imitation_out:
            self.context.announce("no imitation in under four minutes", 0.0)
        if self.state.iteration == 0 and not self._stops:
            self._report_untrained()
        for phase in self.phases:
            while not phase.done and not self._stops:
                with self._ending_where_it_diverges(phase):
                    self._update(phase)
        return self._result()

    def _report_untrained(self) -> None:
        """Reports how the policy places before it has learned anything."""
        first = next((phase for phase in self.phases if phase.rate), None)
        if first is not None:
            with self._ending_where_it_diverges(first):
                self._report(first, self._evaluate(first) | {SPEED: 0.0})

    def _result(self) -> Result:
        score, decisions = math.inf, 0
        if self._selection is not None:
            score, decisions = self._selection.best_score, self._selection.best_decisions
        return Result(
            timesteps=self.state.timesteps,
            iterations=self.state.iteration,
            wall_s=self.state.clock.wall_s,
            best_score=score,
            best_timesteps=decisions,
            finished=self._is_over,
            reinforcement=self._gains(),
            cut_short=tuple(f"{phase.name}: {phase.shortfall}" for phase in self.phases if phase.shortfall),
        )

    def _gains(self) -> dict[str, tuple[float, float]]:
        before, after = self._evaluated
        return {use: (before[name], after[name]) for use, name in GAINS.items() if name in before and after}

    @contextmanager
    def _ending_where_it_diverges(self, phase: Phase) -> Iterator[None]:
        """Ends the training where a number is not finite."""
        update = self.state.iteration + 1
        try:
            yield
        except FloatingPointError as error:
            rates = (phase.rate, "final_learning_rate")
            rate, name = max((float(getattr(self.config, name)), name) for name in rates)
            failure = (
                f"training diverged in {phase.name}, update {update}: {error}; what was saved before is "
                f"kept; train under another name with a lower --{name.replace('_', '-')} (now {rate:g})"
            )
            ended = replace(self._result(), finished=False, cut_short=(), failure=failure)
            raise DivergedError(ended) from error

    def _update(self, phase: Phase) -> None:
        """Makes one step of a phase; after an update, evaluates and saves a checkpoint where that is due."""
        began, before = time.monotonic(), self.state.decisions
        with bf16_matmul():
            metrics = phase.step()
        if not metrics:
            self._agree_to_stop()
            return
        metrics[SPEED] = (self.state.decisions - before) / (time.monotonic() - began)
        self.state.count_update()
        if phase.done or self._is_due(self.config.eval_every) or self._is_due_early:
            metrics |= self._evaluate(phase)
        if self._selection is not None and self.state.iteration == 1:
            self._selection.keep_start()
        self._report(phase, metrics)
        self._agree_to_stop()
        for later in self.phases:
            later.leave_out_if_late()
        if self._is_over or self._stops or self._is_due(self.config.checkpoint_every):
            if self._selection is not None:
                self.context.checkpoints.save(self.state.iteration, self._checkpoint(self._selection))
            self.state.env.restart()

    def _report(self, phase: Phase, metrics: dict[str, float]) -> None:
        counters = {
            ITERATION: self.state.iteration,
            PHASE: 1 + PHASES.index(phase.name),
            PROGRESS: self.state.progress,
            WALL_S: self.state.clock.wall_s,
            CPU_S: self.state.clock.elapsed.cpu_s,
        }
        self.context.report(self.state.decisions, metrics | counters)
        if SCORE in metrics and self._selection is not None:
            for tag in PLACED[self.state.iteration > 0 :]:
                self.context.show(self.state.decisions, tag, self._selection.drawn())

    def _evaluate(self, phase: Phase) -> dict[str, float]:
        """Evaluates the policy in the first worker; the others wait for it at their next exchange.

        Args:
            phase: in which it was updated last.
        """
        self.state.check_workers()
        clock = self.state.clock
        began_s = clock.wall_s
        metrics = self._selection.evaluate() if self._selection is not None else {}
        clock.agree()
        self.state.evaluation_s = clock.wall_s - began_s
        self._evaluations_s += self.state.evaluation_s * (self.state.iteration > 0)
        is_reinforced = isinstance(phase, Reinforcement) and phase.steps > 0
        self._evaluated[is_reinforced] = {name: metrics[name] for name in GAINS.values() if name in metrics}
        return metrics

    def _agree_to_stop(self) -> None:
        """Stops all workers if the context of one wants to stop."""
        self._stops = any_worker(self.context.group, self.context.should_stop())

    @property
    def _is_over(self) -> bool:
        return all(phase.done for phase in self.phases)

    def _is_due(self, every: int) -> bool:
        return self.state.iteration % every == 0

    @property
    def _is_due_early(self) -> bool:
        """Says whether to evaluate after few updates, where that is quick: most is learned at first."""
        spent_s = self._evaluations_s + self.state.evaluation_s
        return self.state.iteration in EARLY and spent_s <= EARLY_SHARE * self.config.limit_s

    def _checkpoint(self, selection: PolicySelection) -> Checkpoint:
        saved = self.state.checkpoint()
        phases = {phase.name: phase.state_dict() for phase in self.phases}
        best = [selection.best_score, selection.best_decisions, selection.least]
        own = {"phases": phases, "best": best, "start": selection.start_score, "evaluated": self._evaluated}
        own["minutes"] = self.config.minutes
        return Checkpoint(saved.tensors, {**saved.state, **own})

    def _restore(self, saved: Checkpoint) -> None:
        """Resumes from a checkpoint; with more minutes than before, the last phase continues."""
        if self._selection is not None:
            best = saved.state["best"]
            self._selection.best_score, self._selection.best_decisions, self._selection.least = best
            self._selection.start_score = saved.state.get("start", math.inf)
        self._evaluated = [dict(each) for each in saved.state["evaluated"]]
        same_limit = saved.state["minutes"] == self.config.minutes
        begun = False
        for phase in reversed(self.phases):
            if phase.name in saved.state["phases"]:
                phase.load_state_dict(saved.state["phases"][phase.name])
            else:  # the training was too short for it
                phase.timed_out = begun
            phase.timed_out &= begun or same_limit or self.state.clock.left_s(phase.name) <= 0
            begun = begun or phase.steps > 0
