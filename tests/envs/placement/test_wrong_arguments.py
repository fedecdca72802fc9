"""Wrong arguments of both environments: each is one line that says what would be right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from envs.cluster.presets import get_cluster
from envs.placement.env import PlacementEnv
from envs.placement.episodes import EpisodeResult
from envs.placement.generator import MdpError, Rounds
from envs.placement.masks import Mask
from envs.placement.reward import Measured
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from graphs import build_graph
from graphs.orders import OrderError
from graphs.system.array_types import BoolArray, IntArray
from tests.envs.hand_made_problems import chain_problem, scarce_problem
from tests.envs.placement.test_environments import some_problems


def cut(device_of: list[int]) -> Callable[[Problem], IntArray]:
    """Gives a placement of too few ops."""
    return lambda problem: np.array(device_of)


def nothing_to_place() -> Problem:
    return Problem(build_graph("g", "", [{"name": "x", "type": "input"}], []), get_cluster("2xk80"))


def nowhere(n_units: int) -> BoolArray:
    return np.zeros((n_units, 2), dtype=np.bool_)


def split_units(problem: Problem) -> IntArray:
    """Gives a placement whose units are on several devices."""
    return np.arange(problem.graph.n_ops) % problem.n_devices


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problems": chain_problem()}, "problems is a Problem; use a list"),
        ({"problems": []}, "no problems"),
        ({"problems": [nothing_to_place()]}, "nothing to place"),
        ({"mdp": "solve"}, "unknown mdp 'solve'"),
        ({"orders": ["upside-down"]}, "upside-down"),
        ({"mask": Mask(allowed=lambda _: nowhere(2))}, r"mask of 'chain' on .*: allows no device .* allow"),
        ({"mask": Mask(allowed=lambda _: nowhere(1))}, r"shape \(1, 2\); expected \(n_units, n_devices\)"),
        ({"problems": [chain_problem().graph]}, r"a problem is a OpGraph; use Problem\(graph, cluster\)"),
        ({"order": "topo"}, "unknown argument 'order'; use orders, mdp"),
        ({"orders": 3}, "orders is 3; use a list or a string"),
        ({"orders": [["topo"]]}, "an order is a list; use a string"),
        ({"mdp": ["improve"]}, "mdp is a list"),
        ({"passes": 0}, "passes is 0; use a whole number, at least 1"),
        ({"memory_penalty": -1.0}, "memory_penalty is -1.0; use a number, at least 0"),
        ({"memory_penalty": math.inf}, "memory_penalty is inf"),
        ({"memory_penalty": math.nan}, "memory_penalty is nan"),
        ({"mask": lambda problem: None}, "mask is a function; use Mask or a string"),
        ({"mask": "free"}, "unknown mask 'free'"),
        ({"mask": Mask(allowed=lambda problem: None)}, r"object, shape \(\); expected"),
        ({"mask": Mask(allowed=np.ones((3, 2)))}, r"float64, shape .* bool; use a function to give each"),
        ({"reward": 1.0}, "reward is 1.0; use a function"),
        ({"reward": Measured}, "reward is a type; use a function"),
        ({"start": "heft"}, "start is 'heft'; use a function"),
        ({"mdp": "improve", "start": cut([0])}, "the start of 'chain' is no placement; give each of 2 ops"),
        ({"mdp": "improve", "start": cut([0, 2])}, "no placement; .* from 0 to 1"),
        ({"mdp": "improve", "start": cut([0, -1])}, "no placement"),
        ({"generator": Rounds}, "generator.draw is a function; use method"),
        ({"generator": "rounds"}, "generator.draw is None"),
        ({"generator": Rounds(only=[1])}, "problem is 1; use a whole number, at least 0, at most 0"),
        ({"generator": Rounds(only=[-1])}, "problem is -1"),
        ({"generator": Rounds(only=[])}, "number of problems in only is 0"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: dict[str, Any], message: str) -> None:
    arguments = {"problems": [chain_problem()], **arguments}
    for make in (lambda: PlacementEnv(**arguments), lambda: PlacementVecEnv(n_envs=2, **arguments)):
        with pytest.raises((MdpError, OrderError), match=message):
            make().reset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem": 7}, "problem is 7; use a whole number, at least 0, at most 0"),
        ({"problem": -1}, "problem is -1"),
        ({"problem": 0.7}, "problem is 0.7"),
        ({"problem": True}, "problem is True"),
        ({"order": "topo"}, "order is 'topo'; use a whole number"),
        ({"seed": -1}, "option seed is -1"),
        ({"problme": 1}, "unknown option 'problme' of reset; use problem, order, seed"),
        ([("problem", 0)], "options is a list; use a dict"),
    ],
)
def test_wrong_options_of_reset_are_one_line(options: Any, message: str) -> None:
    env = PlacementEnv([chain_problem()])
    with pytest.raises(MdpError, match=message):
        env.reset(options=options)
    for seed in (-1, "a", 1.5):
        with pytest.raises(MdpError, match=r"seed is .*; use a whole number or None"):
            env.reset(seed=seed)


def test_a_start_keeps_placement_units_together() -> None:
    with pytest.raises(MdpError, match="all ops of a placement unit one device"):
        PlacementEnv(some_problems()[1:2], mdp="improve", start=split_units).reset()


@pytest.mark.parametrize("action", [2, -1, 0.0, "0", None, True, [0, 0], 10**30])
def test_what_is_no_device_is_refused_before_and_after_an_episode_too(action: Any) -> None:
    env, many = PlacementEnv([chain_problem()]), PlacementVecEnv([chain_problem()], 2)
    for step in (lambda: env.step(np.int64(0)), lambda: many.step(np.array([0, 0]))):
        with pytest.raises(MdpError, match=r"or not begun; call reset\(\)"):
            step()
    env.reset()
    many.reset()
    with pytest.raises(MdpError, match="action"):
        env.step(action)
    with pytest.raises(MdpError, match="action"):
        many.step(np.array([action, action]))
    for ended in (env, PlacementEnv([scarce_problem()])):
        ended.reset()
        while not ended.step(np.flatnonzero(ended.action_masks())[:1])[2]:
            pass
        with pytest.raises(MdpError, match=r"an episode has ended .* call reset\(\)"):
            ended.step(np.int64(0))


def finished(reward: Any) -> EpisodeResult:
    """Ends an episode with everything on the first device."""
    env, info = PlacementEnv([chain_problem()], reward=reward), dict[str, Any]()
    env.reset()
    while not info:
        *_, info = env.step(np.int64(0))
    result: EpisodeResult = info["result"]
    return result


def test_a_reward_may_be_seconds() -> None:
    result = finished(lambda problem, device_of: np.float32(2.5))
    assert (result.step_time_s, result.fits) == (2.5, True)
    assert result.ratio_to_single == pytest.approx(2.5 / chain_problem().scale_s)
    assert result.episode_return == pytest.approx(-result.ratio_to_single)
    assert finished(lambda problem, device_of: math.inf).infeasible
    for value in (-1.0, 0, math.nan, None, True, "1.0"):
        for reward in (lambda problem, device_of: value, Measured(lambda problem, device_of: value)):  # noqa: B023
            with pytest.raises(MdpError, match=r"reward (is|gives) .*(use a number|give seconds above 0)"):
                finished(reward)


def test_a_mask_may_be_a_table() -> None:
    problems = [chain_problem(), chain_problem()]
    table = [[True, False]] * len(problems[0].graph.units)
    for mask in (Mask(allowed=np.array(table)), Mask(allowed=table)):
        env = PlacementVecEnv(problems, 2, mask=mask)
        env.reset()
        assert env.action_masks().tolist() == [[True, False]] * 2
    with pytest.raises(MdpError, match="needs_memory is a list; use True or False"):
        Mask(table)
    with pytest.raises(MdpError, match="use a function to give each problem a table"):
        PlacementEnv([*problems, some_problems()[1]], mask=Mask(allowed=np.array(table)))


def test_arguments_of_many_episodes_are_checked() -> None:
    for arguments in ({"n_envs": 0}, {"n_envs": "4"}, {"threads": 0}, {"seed": -1}):
        with pytest.raises(MdpError, match=r"(episodes|threads|seed) is .*; use a whole number"):
            PlacementVecEnv([chain_problem()], **{"n_envs": 2, **arguments})
    with pytest.raises(MdpError, match="unknown render_mode 'human'; use one of ansi, rgb_array"):
        PlacementEnv([chain_problem()], render_mode="human")
    with pytest.raises(MdpError, match="unknown render_mode 'human'; use rgb_array"):
        PlacementVecEnv([chain_problem()], 2, render_mode="human")
    assert PlacementEnv([chain_problem()], orders="bfs").reset()
