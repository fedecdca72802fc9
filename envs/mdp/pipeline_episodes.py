"""Episodes that place pipelines, many at a time, with the interface of `EpisodeBatch`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envs.mdp.episodes import EpisodeBatch, EpisodeResult, MdpError
from envs.mdp.names import CONSTRUCT, FREE_MEMORY
from envs.mdp.observation import new_observation
from envs.mdp.pipeline_lookahead import observe_pipeline, place_piece
from envs.mdp.pipeline_state import (
    N_STAGES,
    PIECE,
    PieceArrays,
    begin_pipeline,
    new_pipeline_episodes,
    piece_arrays,
    pipeline_episode,
    rank_agenda,
)
from envs.mdp.transition import FITS, INFEASIBLE, INFEASIBLE_PENALTY, OVERFLOW_PENALTY, OVERFLOWS
from envs.pipeline.pipeline import Pipeline, PipelineError, check_one_stage_each
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages, check_cluster
from envs.problem import Problem
from graphs.system.array_types import IntArray


class PipelineEpisodes:
    """The counterpart of `EpisodeBatch` for pipelines: `n` episodes in step with one another.

    An episode places the pieces of a graph's chain in forward order. A piece goes to the device of the piece
    before, or begins a stage on a device without one. The return is -(pipelined step time) / scale; the scale
    is that of the fastest single device.

    Args:
        problems: what episodes may be over; each graph is the step of one microbatch.
        orders, mdp: only the defaults: pieces have one order, and a pipeline is constructed.
        mask, memory_penalty: as of `EpisodeBatch`. A mask leaves out devices that a lower estimate of what
            the stages keep alive does not fit on.
        others: arguments of `EpisodeBatch` that make no difference here.

    Attributes:
        observation: `Observation` of the pieces at hand, each named by its first forward op.

    Raises:
        MdpError: no problems, or a decision process that pipelines do not have.
        PipelineError: a schedule with several stages on a device, or a cluster or graph without pipelines.
        InfeasibleError: a graph for which no placement is within the memory.
    """

    passes = 1

    def __init__(
        self,
        problems: Sequence[Problem],
        n: int,
        *,
        pipeline: Pipeline,
        orders: Sequence[str] = ("topo",),
        mdp: str = CONSTRUCT,
        mask: str = FREE_MEMORY,
        memory_penalty: float = 1.0,
        **others: object,
    ) -> None:
        _check(problems, pipeline, orders, mdp)
        self.problems, self.orders, self.n = list(problems), list(orders), n
        self.pipelined = [PipelinedProblem(problem, pipeline) for problem in problems]
        self.max_devices = max(problem.n_devices for problem in problems)
        self.max_ops = max(each.chain.problem.graph.n_ops for each in self.pipelined)
        self.observation = new_observation(n, self.max_devices)
        self._pipeline, self._masks, self._penalty = pipeline, mask == FREE_MEMORY, float(memory_penalty)
        self._pieces: list[PieceArrays | None] = [None for _ in problems]
        self._rows = new_pipeline_episodes(self.pipelined, n)
        self._episodes = [pipeline_episode(self._rows, episode, self.problems[0]) for episode in range(n)]
        self._outcome, self._decisions = np.zeros((2, n), dtype=np.int64)
        self._returned, self._done = np.zeros(n), np.ones(n, dtype=np.bool_)

    def begin(self, episode: int, problem: int, order: int, rng: np.random.Generator) -> None:
        """Begins one episode over a problem, and observes its first piece.

        If that fits on no device, all are offered for it.

        Args:
            order, rng: not used.
        """
        self.observation.problem[episode, 0] = problem
        self._episodes[episode] = pipeline_episode(self._rows, episode, self.problems[problem])
        begin_pipeline(self._episodes[episode])
        self._returned[episode] = self._decisions[episode] = 0
        self._outcome[episode], self._done[episode] = FITS, False
        if not self._observe(episode):
            n_devices = self.problems[problem].n_devices
            self.observation.mask[episode, :n_devices] = self._episodes[episode].candidate_s >= 0.0

    def step(self, actions: IntArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Takes one decision in every episode.

        Args:
            actions: device index per episode, int (n,); -1 leaves an episode as it is.

        Returns:
            Rewards (n,) and whether each episode is done (n,); begin those anew before the next step.
        """
        rewards = np.zeros(self.n)
        for episode in np.flatnonzero(actions >= 0).tolist():
            rewards[episode] = self._decide(episode, int(actions[episode]))
        self._returned += rewards
        return rewards, self.done

    @property
    def done(self) -> NDArray[np.bool_]:
        """Says which episodes are done, bool (n,)."""
        return self._done.copy()

    def problem_of(self, episode: int) -> Problem:
        """Returns the problem that one episode is over."""
        return self.problems[int(self.observation.problem[episode, 0])]

    def device_of(self, episode: int) -> IntArray:
        """Returns the devices decided so far in one episode, int (n_ops,); -1 = not yet."""
        return self._episodes[episode].device_of.copy()

    def stages(self, episode: int) -> Stages:
        """Returns the partial pipeline of one episode; ops that are not placed are on device -1."""
        state = self._episodes[episode]
        devices = state.devices[: state.state[N_STAGES]].copy()
        return Stages(state.device_of.copy(), state.stage_of.copy(), devices)

    def cuts(self, episode: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the first piece and the device of each stage of one episode."""
        state = self._episodes[episode]
        n_stages = state.state[N_STAGES]
        return tuple(state.first[:n_stages].tolist()), tuple(state.devices[:n_stages].tolist())

    def result(self, episode: int) -> EpisodeResult:
        """Returns how an episode that is done ended."""
        index = int(self.observation.problem[episode, 0])
        infeasible = bool(self._outcome[episode] == INFEASIBLE)
        step_time_s = float("nan") if infeasible else float(self._episodes[episode].time_s[0])
        return EpisodeResult(
            problem=index,
            order=self.orders[0],
            step_time_s=step_time_s,
            ratio_to_single=step_time_s / self.pipelined[index].scale_s,
            fits=bool(self._outcome[episode] == FITS),
            infeasible=infeasible,
            device_of=self.device_of(episode),
            decisions=int(self._decisions[episode]),
            episode_return=float(self._returned[episode]),
        )

    def _decide(self, episode: int, device: int) -> float:
        """Places the piece at hand of one episode; returns the reward."""
        index = int(self.observation.problem[episode, 0])
        pipelined, state = self.pipelined[index], self._episodes[episode]
        before_s = state.time_s[0]
        place_piece(pipelined.problem.arrays, pipelined.arrays, self._arrays(index), state, device)
        self._decisions[episode] += 1
        reward = float(before_s - state.time_s[0]) / pipelined.scale_s
        if state.state[PIECE] == pipelined.chain.n_pieces:
            self._done[episode] = True
            if overflow := self._overflow(pipelined, self.stages(episode)):
                self._outcome[episode] = OVERFLOWS
                reward -= self._penalty * (OVERFLOW_PENALTY + overflow)
        elif not self._observe(episode):
            self._done[episode], self._outcome[episode] = True, INFEASIBLE
            reward -= self._penalty * INFEASIBLE_PENALTY
        return reward

    @staticmethod
    def _overflow(pipelined: PipelinedProblem, stages: Stages) -> float:
        """Memory that a pipeline needs beyond what its devices have, as a share of the cluster's."""
        memory = pipelined.problem.cluster.memory_bytes
        if pipelined.always_fits:
            return 0.0
        beyond = np.maximum(pipelined.simulate(stages).peak_bytes - memory, 0.0)
        return float(beyond.sum() / memory.sum())

    def _observe(self, episode: int) -> bool:
        """Observes the piece at hand; says whether any device is offered for it."""
        index, state = int(self.observation.problem[episode, 0]), self._episodes[episode]
        pipelined, pieces, n_stages = self.pipelined[index], self._arrays(index), int(state.state[N_STAGES])
        self.observation.op[episode, 0] = pieces.first_op[state.state[PIECE]]
        stays = rank_agenda(self._pipeline, max(n_stages, 1))
        try:
            grows, can_grow = rank_agenda(self._pipeline, n_stages + 1), True
        except PipelineError:
            grows, can_grow = stays, False
        arrays = (pipelined.problem.arrays, pipelined.arrays, pieces, state, stays, grows, can_grow)
        seen = (self.observation.devices[episode], self.observation.mask[episode])
        return bool(observe_pipeline(*arrays, self._masks, *seen))

    def _arrays(self, problem: int) -> PieceArrays:
        found = self._pieces[problem]
        if found is None:
            found = self._pieces[problem] = piece_arrays(self.pipelined[problem])
        return found


def episodes_over(
    problems: Sequence[Problem], n: int, *, pipeline: Pipeline | None = None, **arguments: object
) -> EpisodeBatch | PipelineEpisodes:
    """Makes episodes that place one batch at a time, or pipelines; arguments as of `EpisodeBatch`."""
    if pipeline is None:
        return EpisodeBatch(problems, n, **arguments)  # type: ignore[arg-type]
    return PipelineEpisodes(problems, n, pipeline=pipeline, **arguments)  # type: ignore[arg-type]


def _check(problems: Sequence[Problem], pipeline: Pipeline, orders: Sequence[str], mdp: str) -> None:
    if not problems:
        raise MdpError("no problems to place; give at least one graph and one cluster")
    if mdp != CONSTRUCT:
        raise MdpError(f"pipelines need the mdp {CONSTRUCT}, not {mdp}")
    if tuple(orders) != ("topo",):
        raise MdpError("pipelines are placed in forward order; leave out the orders")
    check_one_stage_each(pipeline)
    for problem in problems:
        check_cluster(problem.cluster)
        problem.check_feasible()
