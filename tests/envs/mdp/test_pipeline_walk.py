"""Episodes that place pipelines: equal to slow recomputations, within memory, and what checkers ask for."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check

from envs.cluster.cluster import Cluster, Device
from envs.cluster.presets import get_cluster
from envs.mdp.episodes import MdpError
from envs.mdp.features import column
from envs.mdp.graph_observation import GraphObservation
from envs.mdp.pipeline_episodes import PipelineEpisodes
from envs.mdp.placement_env import PlacementEnv
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.stages import cut_into_stages
from envs.problem import Problem
from graphs import build_graph
from graphs.system.array_types import IntArray
from tests.envs.mdp.reference_pipeline import observation, partial_step
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph

SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
FREE_MEMORY = column("free_memory")


def random_episode(
    seed: int, schedule: str, **arguments: str
) -> tuple[PipelineEpisodes, np.random.Generator]:
    """Begins an episode over a random graph and cluster; devices may be equal."""
    rng = np.random.default_rng(seed)
    cluster = random_pipeline_cluster(rng, int(rng.integers(1, 5)))
    problem = Problem(random_training_graph(rng, int(rng.integers(2, 9))), cluster)
    pipeline = Pipeline(schedule, int(rng.integers(1, 7)))
    batch = PipelineEpisodes([problem], 1, pipeline=pipeline, **arguments)  # type: ignore[arg-type]
    batch.begin(0, 0, 0, rng)
    return batch, rng


def offered(batch: PipelineEpisodes) -> IntArray:
    return np.flatnonzero(batch.observation.mask[0])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), schedule=st.sampled_from(SCHEDULES))
def test_observations_and_rewards_equal_simulations_of_the_partial_graph(seed: int, schedule: str) -> None:
    batch, rng = random_episode(seed, schedule)
    pipelined, devices, before_s, returned = batch.pipelined[0], list[int](), 0.0, 0.0
    while not batch.done[0]:
        expected, total_s = observation(pipelined, devices)
        seen = batch.observation.devices[0].copy()
        seen[:, FREE_MEMORY] = 0.0
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(offered(batch), np.flatnonzero(np.isfinite(total_s)))
        assert pipelined.chain.piece_of[batch.observation.op[0, 0]] == len(devices)
        devices.append(int(rng.choice(offered(batch))))
        reward, _ = batch.step(np.array(devices[-1:]))
        assert reward[0] == pytest.approx((before_s - total_s[devices[-1]]) / pipelined.scale_s, abs=1e-9)
        before_s, returned = total_s[devices[-1]], returned + reward[0]
    result = batch.result(0)
    stages = cut_into_stages(pipelined.problem, result.device_of, batch.stages(0).stage_of)
    step = pipelined.simulate(stages)
    assert step.total_s == pytest.approx(result.step_time_s, rel=1e-9)
    assert returned == pytest.approx(-step.total_s / pipelined.scale_s, rel=1e-9)
    assert result.episode_return == pytest.approx(returned)
    whole = partial_step(pipelined, devices)
    assert whole is not None
    assert whole.total_s == pytest.approx(step.total_s, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), schedule=st.sampled_from(SCHEDULES))
def test_a_pipeline_that_fits_is_never_masked(seed: int, schedule: str) -> None:
    batch, rng = random_episode(seed, schedule, mask="none")
    pipelined, actions = batch.pipelined[0], list[int]()
    while not batch.done[0]:
        actions.append(int(rng.choice(offered(batch))))
        batch.step(np.array(actions[-1:]))
    peak = pipelined.simulate(batch.stages(0)).peak_bytes
    problem = pipelined.problem.with_memory(np.maximum(peak * (1 + 1e-9), 1.0))
    tight = PipelineEpisodes([problem], 1, pipeline=pipelined.pipeline)
    tight.begin(0, 0, 0, rng)
    for action in actions:
        assert action in offered(tight)
        tight.step(np.array([action]))
    assert tight.result(0).fits


def layers(activation: float, memory: tuple[float, ...]) -> Problem:
    """Three layers of one second each way; the backward pass reads each layer's output, of so many bytes."""
    names = ["f0", "f1", "f2", "b2", "b1", "b0"]
    phases = ["forward"] * 3 + ["backward"] * 3
    ops = [{"name": n, "phase": p, "seconds": {"a": 1.0}} for n, p in zip(names, phases, strict=True)]
    tensors = [(0, activation, [1, 5]), (1, activation, [2, 4]), (2, activation, [3])]
    tensors += [(3, 1.0, [4]), (4, 1.0, [5])]
    devices = tuple(Device(f"d{at}", "a", each, 1.0, 1.0, 0.0) for at, each in enumerate(memory))
    shape = (len(memory), len(memory))
    cluster = Cluster("c", devices, np.full(shape, 1e9), np.zeros(shape), sharing="pair", schedule="program")
    return Problem(build_graph("layers", "", ops, tensors), cluster)


@pytest.mark.parametrize(
    ("schedule", "memory", "taken", "allowed"),
    [
        ("1f1b", (100.0, 100.0), [0], [0, 1]),
        ("1f1b", (100.0, 35.0), [1], [0, 1]),
        ("1f1b", (100.0, 35.0), [1, 1], [1]),  # a second stage makes the first keep two microbatches alive
        ("1f1b", (100.0, 25.0), [0, 1], [1]),  # no way back
        ("gpipe", (100.0, 35.0), [], [0]),  # all four microbatches stay alive
    ],
)
def test_masks_leave_out_what_cannot_fit(
    schedule: str, memory: tuple[float, ...], taken: list[int], allowed: list[int]
) -> None:
    batch = PipelineEpisodes([layers(10.0, memory)], 1, pipeline=Pipeline(schedule, 4))
    batch.begin(0, 0, 0, np.random.default_rng(0))
    for device in taken:
        batch.step(np.array([device]))
    assert offered(batch).tolist() == allowed


def test_a_known_pipeline_and_its_return() -> None:
    env = PlacementEnv([layers(0.0, (100.0, 100.0))], pipeline=Pipeline("gpipe", 2))
    env.reset()
    rewards = [env.step(np.int64(device))[1] for device in (0, 1, 1)]
    # Of 12 s on one device; 4 s of the first layer; 1 + 2 + 2 + 1 of two; 1 + 4 + 4 + 1 of three.
    assert rewards == pytest.approx([-4 / 12, -2 / 12, -4 / 12])


def test_an_episode_ends_where_nothing_is_offered() -> None:
    batch = PipelineEpisodes([layers(10.0, (15.0, 15.0))], 1, pipeline=Pipeline("1f1b", 4))
    batch.begin(0, 0, 0, np.random.default_rng(0))
    rewards, done = batch.step(np.array([0]))
    assert done[0]
    assert batch.result(0).infeasible
    assert rewards[0] == pytest.approx(-8 / 24 - 2.0)


def test_an_overflow_costs_its_share_and_one() -> None:
    batch = PipelineEpisodes([layers(10.0, (20.0, 20.0))], 1, pipeline=Pipeline("1f1b", 1), mask="none")
    batch.begin(0, 0, 0, np.random.default_rng(0))
    for _ in range(3):
        batch.step(np.array([0]))
    result, peak = batch.result(0), batch.pipelined[0].simulate(batch.stages(0)).peak_bytes
    assert not result.fits
    assert peak[0] > 30.0
    assert result.episode_return == pytest.approx(-1.0 - 1.0 - (peak[0] - 20.0) / 40.0)


def some_problems() -> list[Problem]:
    return [
        Problem(random_training_graph(np.random.default_rng(seed), 5), get_cluster("4xv100:2"))
        for seed in range(2)
    ]


def test_checkers_find_nothing() -> None:
    # The checkers act at random, without masks; on one device every action is offered.
    problem = Problem(some_problems()[0].graph, get_cluster("4xv100:1"))
    arguments = {"problems": [problem], "pipeline": Pipeline("1f1b", 2)}
    env = gym.make("placewalk/Placement-v0", **arguments)
    gymnasium_check(env.unwrapped, skip_render_check=True)
    sb3_check(env.unwrapped)
    sb3_check(GraphObservation(PlacementEnv([problem], pipeline=Pipeline())))


def test_batched_equals_single() -> None:
    problems, pipeline, rng = some_problems(), Pipeline("1f1b", 3), np.random.default_rng(0)
    batch = PipelineEpisodes(problems, 3, pipeline=pipeline)
    singles = [PlacementEnv(problems, pipeline=pipeline) for _ in range(3)]
    seen = []
    for at, single in enumerate(singles):
        batch.begin(at, at % 2, 0, rng)
        seen.append(single.reset(options={"problem": at % 2})[0])
    while not batch.done.all():
        for at, own in enumerate(seen):
            rows = zip(("problem", "op", "devices", "mask"), batch.observation, strict=True)
            for name, row in rows:
                np.testing.assert_array_equal(row[at].ravel(), own[name], name)
        rests = batch.done | (rng.random(3) < 0.2)
        actions = np.array([int(rng.choice(np.flatnonzero(own["mask"]))) for own in seen])
        rewards, done = batch.step(np.where(rests, -1, actions))
        for at in np.flatnonzero(~rests).tolist():
            seen[at], reward, is_done, _, info = singles[at].step(actions[at])
            assert (reward, is_done) == (rewards[at], done[at])
            if is_done:
                assert info["result"].step_time_s == batch.result(at).step_time_s


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"pipeline": Pipeline("interleaved-1f1b:2", 4)},
            "not schedule 'interleaved-1f1b:2'; use gpipe",
        ),
        (
            {"pipeline": Pipeline("auto", 4)},
            "not schedule 'auto'; use gpipe",
        ),
        ({"pipeline": Pipeline(), "mdp": "improve"}, "need the mdp construct, not improve"),
        ({"pipeline": Pipeline(), "orders": ("random",)}, "in forward order; leave out"),
    ],
)
def test_what_pipelines_do_not_have_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((MdpError, PipelineError), match=message):
        PlacementEnv(some_problems(), **arguments)  # type: ignore[arg-type]


def test_graphs_and_clusters_that_cannot_be_pipelines_are_refused() -> None:
    egress = Problem(some_problems()[0].graph, get_cluster("2xk80"))
    with pytest.raises(PipelineError, match="egress"):
        PlacementEnv([egress], pipeline=Pipeline())
    backward = build_graph("g", "", [{"name": "b", "phase": "backward", "flops": 1.0}], [])
    with pytest.raises(PipelineError, match="no forward ops"):
        PlacementEnv([Problem(backward, get_cluster("4xv100:2"))], pipeline=Pipeline())


def test_a_first_piece_that_fits_nowhere_is_offered_all_devices() -> None:
    env = PlacementEnv([layers(10.0, (35.0, 35.0))], pipeline=Pipeline("gpipe", 4))
    env.reset()
    assert env.action_masks().all()
    *_, done, _, info = env.step(np.int64(0))
    assert done
    assert info["result"].infeasible
