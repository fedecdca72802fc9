"""The decisions of a rollout, and the advantages, from which an update learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent.learn.rollout_buffer import (
    LEAST_SHARE,
    MOST_ERROR,
    PerGraphRolloutBuffer,
    chances_of,
    draw_systematically,
    less_others,
    normalise_within,
)
from envs.placement.vec_env import PlacementVecEnv
from tests.envs.hand_made_problems import chain_problem


def test_a_decision_is_compared_with_the_others_on_the_same_op() -> None:
    group = np.array([[7, 7, 3], [7, 0, 3]])
    values = np.array([[1.0, 2.0, 5.0], [6.0, 9.0, 4.0]], dtype=np.float32)
    compared = less_others(group, values)
    assert compared.dtype == np.float32
    assert compared.tolist() == [[1.0 - 4.0, 2.0 - 3.5, 1.0], [6.0 - 1.5, 9.0, -1.0]]


def test_each_group_has_mean_zero_and_deviation_one() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, (50, 8))
    values = (rng.normal(size=(50, 8)) * np.array([1.0, 2.0, 5.0])[group] + group).astype(np.float32)
    scaled = normalise_within(group, values)
    assert scaled.shape == values.shape
    assert scaled.dtype == np.float32
    for member in range(3):
        assert abs(scaled[group == member].mean()) < 1e-6
        assert abs(scaled[group == member].std() - 1) < 1e-6


def test_a_group_without_spread_is_not_blown_up() -> None:
    group = np.array([0, 0, 1, 1])
    scaled = normalise_within(group, np.array([1.0, 1.0 + 1e-6, -1.0, 1.0], dtype=np.float32))
    assert np.abs(scaled[:2]).max() < 1e-5 / LEAST_SHARE
    assert np.abs(scaled[2:]).max() == 1.0


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.99))
def test_decisions_are_chosen_by_the_size_of_their_advantage(seed: int, share: float) -> None:
    advantages = np.random.default_rng(seed).standard_normal((20, 50)).astype(np.float32) ** 3
    chances = chances_of(advantages, share)
    assert chances.mean() == pytest.approx(share, rel=1e-3)
    assert chances.max() <= 1
    some = chances < 1
    sizes = np.abs(advantages[some])
    np.testing.assert_allclose(chances[some], sizes * (chances[some].max() / sizes.max()), rtol=1e-4)


def test_a_share_of_the_decisions_has_the_gradient_of_all() -> None:
    """Weighted sums over what is chosen are those over all decisions, but for chance."""
    rng, sums, sizes = np.random.default_rng(0), [], set()
    np.random.seed(0)  # noqa: NPY002 (as SB3 does)
    advantages, directions = rng.standard_normal(5000).astype(np.float32), rng.standard_normal(5000)
    chances = chances_of(advantages, 0.2)
    for _ in range(400):
        chosen = draw_systematically(chances)
        assert len(set(chosen.tolist())) == len(chosen)
        sizes.add(len(chosen))
        sums.append((directions * advantages / chances)[chosen].sum())
    assert sizes <= {999, 1000, 1001}
    error = np.std(sums) / np.sqrt(len(sums))
    assert np.mean(sums) == pytest.approx((directions * advantages).sum(), abs=4 * error)


def test_the_critic_learns_from_bounded_errors() -> None:
    env = PlacementVecEnv([chain_problem()], 2)
    buffer = PerGraphRolloutBuffer(2, env.observation_space, env.action_space, n_envs=2)
    decisions = buffer.begin(2)
    decisions.reward[:], decisions.value[:] = [[-90.0, -0.2], [-9.0, -0.1]], 3.0
    buffer.finish(torch.zeros(2, 1), np.ones(2, dtype=bool))
    (samples,) = buffer.get()
    assert buffer.returns.min() < -90
    torch.testing.assert_close(samples.returns, torch.full((4,), 3.0 - MOST_ERROR))


def test_minibatches_hold_each_decision_once_and_few_graphs() -> None:
    problems = [chain_problem() for _ in range(6)]
    env = PlacementVecEnv(problems, 6)
    buffer = PerGraphRolloutBuffer(4, env.observation_space, env.action_space, n_envs=6)
    decisions = buffer.begin(4)
    decisions.problem[:], decisions.reward[:] = np.arange(6), np.arange(24).reshape(4, 6)
    buffer.finish(torch.zeros(6, 1), np.ones(6, dtype=bool))
    batches = list(buffer.get(8))
    seen = torch.cat([batch.observations["problem"].flatten() for batch in batches])
    assert seen.bincount().tolist() == [4] * 6
    assert [len(batch.observations["problem"].unique()) for batch in batches] == [2] * 3
