"""Rollouts of the compiled loop are those of stepping episodes and asking the torch policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from agent.learn.ppo import PlacementPPO
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from envs.cluster.presets import get_cluster
from envs.placement.episodes import EpisodeBatch, EpisodeResult, EpisodeSettings
from envs.placement.generator import Rounds
from envs.placement.reward import Measured
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_family
from graphs.granularity import with_granularity
from graphs.system.array_types import IntArray
from tests.agent.placement_cases import random_problem
from tests.envs.hand_made_problems import scarce_problem

TOLERANCE = 2e-5
"""Of scores of size 1: sums of float32 in another sequence."""
N_STEPS, N_PLACES = 45, 4


def make(problems: Sequence[Problem], repeats: int = 1, **arguments: Any) -> PlacementPPO:
    """A policy of no training, whose choices are far from uniform."""
    env = PlacementVecEnv(problems, N_PLACES, generator=Rounds(repeats=repeats), **arguments)
    torch.manual_seed(1)
    policy = Policy(PlacementNetwork(current_shape("sage", 24, 2)))
    torch.nn.init.normal_(policy.network.actor[-1].weight)
    kwargs = {"make_policy": lambda: policy}
    ppo = PlacementPPO(
        "PlacementPolicy", env, n_steps=N_STEPS, gae_lambda=0.9, policy_kwargs=kwargs, seed=0, device="cpu"
    )
    ppo.set_logger(Logger(folder=None, output_formats=[]))
    ppo.restart()
    return ppo


class EndedEpisodes(BaseCallback):
    """Keeps the results of the episodes that end."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[EpisodeResult] = []

    def _on_step(self) -> bool:
        self.results += [info["result"] for info in self.locals["infos"] if info]
        return True


def roll_out(ppo: PlacementPPO, n_steps: int) -> list[EpisodeResult]:
    """Fills the buffer; returns the results of the episodes that ended."""
    ended = EndedEpisodes()
    ended.init_callback(ppo)
    assert ppo.collect_rollouts(ppo.env, ended, ppo.rollout_buffer, n_steps)
    return ended.results


class KeptDraws:
    """A generator that keeps what it drew last as draws of devices."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        self.last = self._rng.random(shape)
        return self.last


class Stepped:
    """One place, stepped one decision at a time, with the devices and the beginnings of a rollout."""

    def __init__(self, ppo: PlacementPPO, place: int, **arguments: Any) -> None:
        self.batch = EpisodeBatch(ppo.env.problems, 1, EpisodeSettings(**arguments))
        self.ppo, self.place = ppo, place
        self.ended, self.results = True, list[EpisodeResult]()

    def begin(self) -> None:
        drawn = self.ppo.env.beginnings[len(self.results)][self.place]
        self.batch.begin(0, drawn.problem, drawn.order, np.random.default_rng(drawn.seed))

    def scores(self) -> tuple[np.ndarray, float]:
        """Probabilities of the devices, and the value."""
        obs = {name: torch.from_numpy(rows.copy()) for name, rows in self.batch.observation._asdict().items()}
        with torch.inference_mode():
            logits, values = self.ppo.policy.placer.scores(obs)
        return logits.softmax(1)[0].numpy(), float(values)

    def compare(self, draws: np.ndarray) -> None:
        """Compares all that a rollout recorded of this place."""
        buffer, ends, values = self.ppo.rollout_buffer, [], []
        for at, draw in enumerate(draws):
            if self.ended:
                self.begin()
            row = at, self.place
            for name, seen in self.batch.observation._asdict().items():
                np.testing.assert_array_equal(buffer.observations[name][row], seen[0].flatten())
            np.testing.assert_array_equal(buffer.action_masks[row], self.batch.observation.mask[0])
            assert buffer.episode_starts[row] == self.ended
            probabilities, value = self.scores()
            device = int(buffer.actions[row][0])
            below, likely = probabilities[:device].sum(), probabilities[device]
            assert below - TOLERANCE <= draw <= below + likely + TOLERANCE
            close = pytest.approx([np.log(likely), value], rel=TOLERANCE, abs=TOLERANCE)
            assert [buffer.log_probs[row], buffer.values[row]] == close
            rewards, done = self.batch.step(np.array([device]))
            assert buffer.rewards[row] == np.float32(rewards[0])
            self.ended = bool(done[0])
            if self.ended:
                self.results.append(self.batch.result(0))
            ends.append(self.ended)
            values.append(value)
        own = slice(None), self.place
        expected = returns(buffer.rewards[own], [*values, self.scores()[1]], ends)
        np.testing.assert_allclose(buffer.returns[own], expected, rtol=1e-4, atol=1e-4)


def returns(rewards: np.ndarray, values: list[float], ends: list[bool]) -> list[float]:
    """Returns by generalised advantage estimation with lambda 0.9; there is one more value than rewards."""
    advantage, found = 0.0, []
    for at in reversed(range(len(rewards))):
        later = 0.0 if ends[at] else values[at + 1] + 0.9 * advantage
        advantage = rewards[at] + later - values[at]
        found.append(advantage + values[at])
    return found[::-1]


def summary(results: Sequence[EpisodeResult]) -> list[tuple[Any, ...]]:
    return sorted(
        (each.problem, each.order, each.decisions, each.episode_return, *each.device_of) for each in results
    )


@pytest.mark.parametrize("cluster", ["4xv100", "gpu+cpu", "2x4xa100", "placeto-k80:3"])
@pytest.mark.parametrize(
    ("mdp", "orders"), [("construct", ["topo", "random"]), ("construct", ["bfs"]), ("improve", ["topo"])]
)
def test_rollouts_are_those_of_single_steps(cluster: str, mdp: str, orders: list[str]) -> None:
    """Two in a row, where episodes go on from the first to the second."""
    graphs = [load_family("cifar10")[1], with_granularity(load_family("cifar10")[0], "module")]
    problems = [*(Problem(graph, get_cluster(cluster)) for graph in graphs), *[scarce_problem()] * 3]
    arguments = {"mdp": mdp, "orders": orders, "passes": 1}
    ppo = make(problems, **arguments)
    ppo.env._decision_rng = KeptDraws(ppo.env._decision_rng)
    places = [Stepped(ppo, place, **arguments) for place in range(N_PLACES)]
    results = []
    for _ in range(2):
        results += roll_out(ppo, N_STEPS)
        assert ppo.rollout_buffer.full
        for place in places:
            place.compare(ppo.env._decision_rng.last[:, place.place])
    assert summary(results) == summary([result for place in places for result in place.results])
    assert len(results) > 1
    assert any(result.infeasible for result in results) == (mdp == "construct")


def test_rollouts_do_not_depend_on_the_threads_or_on_what_was_before_a_restart() -> None:
    problems = [random_problem(seed, 12) for seed in range(3)]
    rows = []
    for threads in (1, 3):
        ppo = make(problems, threads=threads)
        if threads == 1:
            roll_out(ppo, 25)
        ppo.restart()
        roll_out(ppo, 40)
        buffer = ppo.rollout_buffer
        rows.append([*buffer.observations.values(), buffer.actions, buffer.rewards, buffer.episode_starts])
    for one, other in zip(*rows, strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_problem_comes_up_once_a_round_and_those_of_one_stay_together() -> None:
    problems = [random_problem(seed, 12 + 9 * seed) for seed in range(4)]
    env = make(problems, repeats=2).env
    env.seed(3)
    env.restart()
    env._draw_beginnings(4)
    drawn = [[each.problem for each in row] for row in env.beginnings]
    rounds = np.concatenate(drawn).reshape(-1, 4, 2)
    assert (rounds[..., 0] == rounds[..., 1]).all()
    assert np.sort(rounds[..., 0]).tolist() == [[0, 1, 2, 3]] * 2


def test_the_return_is_what_a_timer_measures() -> None:
    """Of some placements it says that they cannot be run."""
    problems = [random_problem(seed, 12) for seed in range(3)]

    def timer(problem: Problem, device_of: IntArray) -> float:
        return np.inf if device_of.sum() % 2 else 3.0 * simulate_problem(problem, device_of).total_s

    found = []
    for reward in (Measured(timer), simulate_problem):
        ppo = make(problems, reward=reward)
        found.append((roll_out(ppo, 40), ppo.rollout_buffer.rewards.sum()))
    (timed, total), (simulated, plain_total) = found
    measured = [pair for pair in zip(timed, simulated, strict=True) if pair[1].fits]
    failed = [result for result, _ in measured if result.infeasible]
    assert len(measured) > len(failed) > 2
    for result, plain in measured:
        assert result.fits != result.infeasible == (plain.device_of.sum() % 2)
        if result.fits:
            assert result.step_time_s == 3 * plain.step_time_s
            assert result.episode_return == pytest.approx(-3 * plain.ratio_to_single)
        else:
            assert result.episode_return == pytest.approx(plain.episode_return - 2)
    gained = sum(result.episode_return - plain.episode_return for result, plain in measured)
    assert total - plain_total == pytest.approx(gained, rel=1e-5)


def test_scores_that_are_not_finite_end_a_rollout() -> None:
    ppo = make([random_problem(0, 12)])
    with torch.no_grad():
        ppo.policy.placer.network.actor[1].bias.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="the policy's scores are not finite"):
        roll_out(ppo, 10)
