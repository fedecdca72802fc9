"""What a policy sees of each device, and a plain learner of the graph, by hand."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from stable_baselines3.common.monitor import Monitor

import envs  # noqa: F401 - registers the environment
from envs.cluster.presets import get_cluster
from envs.placement.env import PlacementEnv
from envs.placement.masks import Mask
from envs.placement.observation.features import DEVICE_FEATURES, N_DEVICE_FEATURES
from envs.placement.observation.graph_observation import NEIGHBOUR_FEATURES, OP_FEATURES, GraphObservation
from envs.placement.observation.rollout_features import FAR, FAR_OF_LONG, HORIZONS, LONG
from envs.placement.state import mdp_arrays
from envs.problem import Problem
from graphs import OpGraph, build_graph
from graphs.system.array_types import FloatArray
from tests.envs.hand_made_problems import branches, chain_problem, cluster_of

NAMES = [feature.name for feature in DEVICE_FEATURES]
ID = "placewalk/Placement-v1"


def on_gpus(graph: OpGraph, *memory_bytes: float) -> Problem:
    """Places a graph on equal devices, x, y and z below, with links of 8 bytes/s and 0.25 s."""
    cluster = cluster_of(*["gpu"] * len(memory_bytes), bytes_per_s=8.0, latency_s=0.25)
    return Problem(graph, cluster).with_memory(np.array(memory_bytes))


def graph_of(
    ops: dict[str, float], tensors: list[tuple[int, float, list[int]]], **more: dict[str, Any]
) -> OpGraph:
    """Builds ops that take some seconds; `more` says more of ops by their names."""
    records = [{"name": op, "seconds": {"gpu": s}} | more.get(op, {}) for op, s in ops.items()]
    return build_graph("g", "", records, tensors)


def together(n: int) -> dict[str, Any]:
    return {"colocate": n}


UPDATE = {"colocate": 0, "phase": "optimizer"}


@pytest.mark.parametrize("is_alone", [True, False])
def test_only_what_is_placed_alone_waits_for_updates(is_alone: bool) -> None:
    """A gradient goes to a sum, which alone an update reads; it may be placed with an op before it."""
    ops = dict.fromkeys(("a", "gradient", "sum", "update"), 1.0)
    gradient = {} if is_alone else together(0)
    graph = graph_of(ops, [(1, 8.0, [2]), (2, 8.0, [3])], a=together(0), gradient=gradient, update=UPDATE)
    assert mdp_arrays(on_gpus(graph, 1e9), Mask()).waits.tolist() == [0, int(is_alone), 1, 0]


def test_features_of_a_hand_made_instance() -> None:
    problem = chain_problem()
    env = PlacementEnv([problem])
    env.reset(seed=0)
    seen, reward, done, _, _ = env.step(np.int64(1))
    assert (reward, done) == (pytest.approx(-1.0 / 1.5), False)
    table = seen["devices"].reshape(2, N_DEVICE_FEATURES)
    mean = 4.5 / 4
    # On `slow`, 0.75 s of transfer after a's end at 1 s, b runs from 1.75 to 2.75; on `fast` 1 to 1.5.
    expected = {
        "step_time_over_least": [1.25, 0.0],
        "step_time_growth": [1.75, 0.5],
        "start_over_earliest": [0.75, 0.0],
        "finish_over_earliest": [1.25, 0.0],
        "device_free_over_earliest": [0.0, 1.0],
        "inputs_ready_over_earliest": [0.75, 0.0],
        "op_time_over_least": [0.5, 0.0],
        "op_time": [1.0, 0.5],
        "input_transfer_time": [0.75, 0.0],
        "idle_time": [1.0, 0.0],
        "step_time_beyond_finish": [0.0, 0.0],
    }
    for name, seconds in expected.items():
        column = table[:, NAMES.index(name)]
        np.testing.assert_allclose(column, np.log1p(np.array(seconds) / mean), rtol=1e-6, err_msg=name)
    plain = {
        "input_bytes_there": [0.0, 1.0],
        "output_bytes_there": [0.0, 0.0],
        "load_over_mean": [-1.0, 1.0],
        "free_memory": [0.9, 0.8],
        "is_current_device": [0.0, 0.0],
        "is_last_device": [0.0, 1.0],
        "step_time": [1.0 / 1.5, 1.0 / 1.5],
        "visits_done": [0.5, 0.5],
    }
    for name, values in plain.items():
        np.testing.assert_allclose(table[:, NAMES.index(name)], values, rtol=1e-6, err_msg=name)


def features_after_the_first_op_went_to_the_second_device(graph: OpGraph) -> dict[str, FloatArray]:
    """Returns by name one entry per device of three."""
    env = PlacementEnv([on_gpus(graph, 100.0, 100.0, 100.0)])
    env.reset(seed=0)
    return columns(env.step(np.int64(1))[0])


def columns(seen: dict[str, FloatArray]) -> dict[str, FloatArray]:
    return dict(zip(NAMES, seen["devices"].reshape(-1, N_DEVICE_FEATURES).T, strict=True))


def elsewhere(seconds: float) -> FloatArray:
    """Seconds on all devices but the second, in mean op times of one."""
    return np.log1p([seconds, 0.0, seconds])


def there(seconds: float) -> FloatArray:
    """The same on the second device alone."""
    return np.log1p([0.0, seconds, 0.0])


def rollouts(
    step: FloatArray, mean_finish: FloatArray | None = None, *horizons: str
) -> dict[str, FloatArray]:
    names = horizons or HORIZONS
    seen = {f"rollout_step_time_{horizon}_over_least": step for horizon in names}
    if mean_finish is not None:
        seen |= {f"rollout_mean_finish_{horizon}_over_least": mean_finish for horizon in names}
    return seen


ONLY_THERE = np.array([0.0, 1.0, 0.0])
HAND_MADE: dict[str, tuple[OpGraph, dict[str, FloatArray]]] = {
    # The output of b goes to d, placed with a, and to c, which also reads a's output and b's weight. From
    # another device 7 bytes, output and parameter, go to a's output sooner than its 16 bytes come. After a on
    # y until 1 s, b there ends at 2 and c at 3; elsewhere b ends at 1, sends, and c at 3.125.
    "consumers": (
        graph_of(
            {"a": 1.0, "weight": 0.0, "b": 1.0, "c": 1.0, "d": 1.0},
            [(0, 16.0, [3]), (1, 3.0, [2, 3]), (2, 4.0, [3, 4]), (3, 1.0, [4])],
            a=together(0),
            weight={"type": "parameter", "colocate": 1},
            b=together(1),
            d=together(0),
        ),
        {
            "consumer_input_bytes_there": ONLY_THERE,
            "output_transfer_time": elsewhere(0.75),
            "consumer_transfer_time_over_least": elsewhere(1.125),
            "consumer_finish_over_earliest": elsewhere(0.125),
        },
    ),
    # The 4 bytes that reach the join go to the 80 that are there already, whatever lies between. With `left`
    # on y until 1 s, the branch on y ends at 4 and the join at 5; elsewhere it ends at 3, sends 4 bytes to y,
    # and the join ends at 4.75. Mean finishes: (2 + 3 + 4 + 5) / 4 and (1 + 2 + 3 + 4.75) / 4.
    "a chain is followed to the first op that reads something placed": (
        branches(),
        {"consumer_input_bytes_there": ONLY_THERE, "consumer_transfer_time_over_least": elsewhere(0.75)}
        | rollouts(there(0.25), there(0.8125)),
    ),
    # Only an update, placed with a on y, reads `gradient`, which takes 4 s; `next` reads what a makes. With b
    # on y until 2 s, the gradient is there until 6 and `next` elsewhere until 3.25, or on y until 3; with b
    # elsewhere until 1, the gradient is there until 5, in 0.35 s on y, and `next` on y until 2.
    "on the path gradients of weights give way": (
        graph_of(
            {"a": 1.0, "b": 1.0, "gradient": 4.0, "next": 1.0, "update": 0.0},
            [(0, 8.0, [3]), (1, 8.0, [2]), (2, 0.8, [4])],
            a=together(0),
            update=UPDATE,
        ),
        rollouts(there(0.65 / 1.75), there((2 + 6 + 3.25 - 1 - 5 - 2) / 3 / 1.75), "far")
        | rollouts(there(1 / 1.75), there(1 / 1.75), "path"),
    ),
    # The last of twelve ops, which takes 100 s, reads 8 bytes from a on y; those between take no time. It
    # could start on y at 1 s, or elsewhere at 2.25; with the op at hand on y, on y at 2.
    "when ops beyond a rollout could start": (
        graph_of({f"op{at}": s for at, s in enumerate([1.0, 1.0, *[0.0] * 9, 100.0])}, [(0, 8.0, [11])]),
        rollouts(there(1 / 34)),
    ),
    "all compute ops of a unit": (
        graph_of(
            {"a": 1.0, "b": 1.0, "c": 2.0, "d": 3.0},
            [],
            **{op: together(unit) for op, unit in zip("abcd", (0, 1, 0, 1), strict=True)},
        ),
        {"op_time": np.log1p([4.0 / 1.75] * 3), "load_over_mean": np.array([-1.0, 2.0, -1.0])},
    ),
    # The last of ten ops of one unit reads 160 bytes from the op at hand: far ahead, no decision away. On y
    # all run one after the other, until 11 s; elsewhere the bytes arrive at 21.25 s.
    "horizons count decisions": (
        graph_of(
            {f"op{at}": 1.0 for at in range(11)},
            [(1, 160.0, [10])],
            **{f"op{at}": together(int(at == 1)) for at in range(11)},
        ),
        rollouts(elsewhere(11.25), None, HORIZONS[0]),
    ),
}


@pytest.mark.parametrize("what", HAND_MADE)
def test_features_after_the_first_op_went_to_the_second_device(what: str) -> None:
    graph, expected = HAND_MADE[what]
    table = features_after_the_first_op_went_to_the_second_device(graph)
    for name, values in expected.items():
        np.testing.assert_allclose(table[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(("n_others", "decided"), [(80, FAR), (LONG, FAR_OF_LONG)])
def test_the_far_horizon_includes_what_decided_units_run_later(n_others: int, decided: int) -> None:
    """The unit at hand runs one more op after many others: the rollout decides some of them, then runs it."""
    units = {f"op{at}": together(unit) for at, unit in enumerate([0, 1, *range(2, 2 + n_others), 1])}
    graph = graph_of(dict.fromkeys(units, 1.0), [(0, 800.0, [len(units) - 1])], **units)
    table = features_after_the_first_op_went_to_the_second_device(graph)
    # It reads 800 bytes from a on y, which end at 1 s: elsewhere they arrive at 101.25 s. On y, a and
    # the decided ops share three devices, and it comes last.
    time_s = np.expm1(table[f"rollout_step_time_{HORIZONS[-1]}_over_least"])
    assert time_s[1] == 0.0
    np.testing.assert_allclose(time_s[[0, 2]], 102.25 - math.ceil((decided + 1) / 3) - 1.0, rtol=1e-5)
    assert np.expm1(table[f"rollout_step_time_{HORIZONS[0]}_over_least"]).max() < 2.0


def test_rollouts_keep_to_the_memory() -> None:
    """An op that reads 80 bytes must leave the device they are on, whose memory its parameters exceed."""
    kept = {op: {"resident_bytes": 6} for op in "ab"}
    graph = graph_of({"a": 1.0, "b": 1.0}, [(0, 80.0, [1])], **kept)
    seen, _ = PlacementEnv([on_gpus(graph, 10.0, 20.0)]).reset(seed=0)
    time_s = columns(seen)[f"rollout_step_time_{HORIZONS[0]}_over_least"]
    np.testing.assert_allclose(time_s, np.log1p([10.25, 0.0]), rtol=1e-6)


def test_graph_observation_of_a_hand_made_instance() -> None:
    env = GraphObservation(gym.make(ID, problems=[chain_problem()]), n_neighbours=2)
    seen, _ = env.reset(seed=0)
    assert not seen["producers"].any()
    assert not seen["consumers"].any()
    seen = env.step(np.int64(1))[0]
    # Ops take 1.125 s in the mean; 4 bytes over 8 bytes/s take 0.5 s; 10 of 100 bytes of memory are kept.
    transfer, a, b, footprint = np.log1p([0.5 / 1.125, 1.5 / 1.125, 0.75 / 1.125, 0.1])
    expected = [b, footprint, transfer, 0.0, np.log(2), 0.0, 1.0, 0.0, 0.0, 0.5]
    np.testing.assert_allclose(seen["op"], expected, rtol=1e-6)
    assert len(expected) == len(OP_FEATURES)
    producers = seen["producers"].reshape(2, len(NEIGHBOUR_FEATURES) + 2)
    np.testing.assert_allclose(producers[0], [1.0, transfer, a, footprint, 0.0, 0.0, 1.0], rtol=1e-6)
    assert not producers[1].any()
    assert not seen["consumers"].any()
    assert env.action_masks().tolist() == [True, True]


def test_an_improvement_sees_consumers_where_they_are() -> None:
    env = GraphObservation(gym.make(ID, problems=[chain_problem()], mdp="improve"), n_neighbours=1)
    seen, _ = env.reset(seed=0)
    transfer, b, footprint = np.log1p([0.5 / 1.125, 0.75 / 1.125, 0.1])
    np.testing.assert_allclose(seen["consumers"], [1.0, transfer, b, footprint, 0.0, 0.0, 1.0], rtol=1e-6)


def test_neighbours_with_most_bytes_come_first_and_the_rest_is_left_out() -> None:
    ops = [{"name": "x", "type": "input"}, *({"name": f"p{i}", "seconds": {"k80": 1.0}} for i in range(3))]
    tensors = [(0, 5e9, [4]), (1, 1e9, [4]), (2, 2e9, [4]), (2, 2e9, [4]), (3, 3e9, [4])]
    graph = build_graph("star", "", [*ops, {"name": "c", "seconds": {"k80": 1.0}}], tensors)
    env = GraphObservation(gym.make(ID, problems=[Problem(graph, get_cluster("2xk80"))]), n_neighbours=2)
    env.reset(seed=0)
    for device in (0, 1, 0):
        seen = env.step(np.int64(device))[0]
    producers = seen["producers"].reshape(2, -1)
    # The input x is not placed before c, which decides for it; of the others p1 sends 4e9 bytes, p2 3e9.
    assert producers[:, len(NEIGHBOUR_FEATURES) :].tolist() == [[0, 1], [1, 0]]
    sent = np.expm1(producers[:, NEIGHBOUR_FEATURES.index("transfer_time")])
    assert sent[0] / sent[1] == pytest.approx(4 / 3, rel=1e-5)


def test_other_environments_are_refused() -> None:
    with pytest.raises(TypeError, match="PlacementEnv"):
        GraphObservation(gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="at least 1"):
        GraphObservation(gym.make(ID, problems=[chain_problem()]), n_neighbours=0)


def slow_and_fast() -> Problem:
    """Eight ops in a row on two devices, one of which is ten times as fast."""
    ops = [{"name": f"op{i}", "seconds": {"slow": 1.0, "fast": 0.1}} for i in range(8)]
    graph = build_graph("row", "", ops, [(i, 1.0, [i + 1]) for i in range(7)])
    return Problem(graph, cluster_of("slow", "fast", bytes_per_s=100.0))


def test_plain_ppo_learns_a_trivial_problem() -> None:
    env = Monitor(GraphObservation(gym.make(ID, problems=[slow_and_fast()])))
    env.reset(seed=0)
    env.action_space.seed(0)
    at_random = [episode_return(env, lambda _: env.action_space.sample()) for _ in range(20)]
    settings = {"n_steps": 128, "batch_size": 128, "n_epochs": 5, "learning_rate": 1e-2}
    model = MaskablePPO("MultiInputPolicy", env, **settings, seed=0, device="cpu").learn(512)
    learned = episode_return(env, lambda seen: model.predict(seen, deterministic=True)[0])
    assert np.mean(at_random) < -3.0
    assert learned == pytest.approx(-1.0)


def episode_return(env: gym.Env, act) -> float:
    seen, _ = env.reset()
    total, done = 0.0, False
    while not done:
        seen, reward, done, *_ = env.step(np.int64(act(seen)))
        total += float(reward)
    return total
