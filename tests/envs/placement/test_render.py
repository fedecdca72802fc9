"""Drawings show where and when ops run, and the op at hand."""

from __future__ import annotations

import numpy as np

from envs.placement.env import PlacementEnv
from envs.placement.render import COLUMNS, GAP, IDLE, MARK, PIXELS, ROW
from envs.placement.vec_env import PlacementVecEnv
from tests.envs.hand_made_problems import chain_problem


def test_a_text_shows_what_runs_and_the_op_at_hand() -> None:
    env = PlacementEnv([chain_problem()], render_mode="ansi")
    env.reset()
    first, *rows = env.render().splitlines()
    assert first == "0 of 2 ops, 0 ms; at hand: 'a'"
    assert [row.split()[-1] for row in rows[:2]] == ["." * COLUMNS] * 2
    env.step(np.int64(0))
    first, zero, one, marked = env.render().splitlines()
    assert first.endswith("ms; at hand: 'b'")
    assert zero.split()[-1] == "#" * COLUMNS
    assert one.split()[-1] == "." * COLUMNS
    assert marked.index("^") == len(zero) - 1
    env.step(np.int64(1))
    first, zero, one = env.render().splitlines()
    assert first.startswith("2 of 2 ops, ")
    assert "at hand" not in first
    assert 0 < zero.split()[-1].rindex("#") < one.split()[-1].index("#") < COLUMNS - 1


def test_an_op_that_moves_is_marked_where_it_runs() -> None:
    env = PlacementEnv([chain_problem()], mdp="improve", render_mode="ansi")
    env.reset()
    assert "@" in env.render()
    assert "^" not in env.render()


def test_an_image_shows_the_devices_and_the_op_at_hand() -> None:
    env = PlacementVecEnv([chain_problem()], 2, render_mode="rgb_array")
    env.reset()
    env.step(np.array([0, 1]))
    zero, one = env.get_images()
    assert zero.shape == (2 * (ROW + GAP) + GAP, PIXELS, 3)
    assert (zero[GAP, :-1] != IDLE).any(axis=-1).all()
    assert (zero[2 * GAP + ROW, :-1] == IDLE).all()
    np.testing.assert_array_equal(zero[GAP, :-1], one[2 * GAP + ROW, :-1])
    assert (zero[:, -1] == MARK).all()
    assert env.render().shape[2] == 3
