"""What a policy sees of each device, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, Device
from envs.placement.env import PlacementEnv
from envs.placement.masks import Mask
from envs.placement.observation.features import DEVICE_FEATURES, N_DEVICE_FEATURES, columns_of
from envs.placement.observation.rollout_features import FAR, FAR_OF_LONG, HORIZONS, LONG
from envs.placement.state import mdp_arrays
from envs.problem import Problem
from graphs import OpGraph, build_graph
from graphs.system.array_types import FloatArray
from tests.envs.hand_made_problems import branches, chain_problem

NAMES = [feature.name for feature in DEVICE_FEATURES]


def test_what_is_read_beside_an_output_is_the_largest_pair_the_first_if_they_tie() -> None:
    ops = [{"name": name, "seconds": {"gpu": 1.0}} for name in ("sum", "gradient", "other", "add", "again")]
    sizes = [(0, 8.0, [3]), (1, 4.0, [3, 4]), (2, 4.0, [4]), (3, 8.0, [4])]
    problem = Problem(
        build_graph("joins", "", ops, sizes),
        Cluster("one", (Device("0", "gpu", 1e9, 1.0, 1.0, 0.0),), np.ones((1, 1)), np.zeros((1, 1))),
    )
    arrays = mdp_arrays(problem, Mask())
    # In `add` 4 bytes of the gradient move to the sum, in `again` as many to the sum of before.
    assert arrays.joined.tolist() == [0, 1, 2, 3, -1]
    assert arrays.beside.tolist() == [1, 0, 3, 1, -1]


@pytest.mark.parametrize("is_alone", [True, False])
def test_only_what_is_placed_alone_waits_for_updates(is_alone: bool) -> None:
    """A gradient goes to a sum, which alone an update reads; it may be placed with an op before it."""
    ops = [{"name": name, "seconds": {"gpu": 1.0}} for name in ("a", "gradient", "sum", "update")]
    ops[0] |= {"colocate": 0}
    ops[1] |= {} if is_alone else {"colocate": 0}
    ops[3] |= {"colocate": 0, "phase": "optimizer"}
    graph = build_graph("waits", "", ops, [(1, 8.0, [2]), (2, 8.0, [3])])
    device = Device("0", "gpu", 1e9, 1.0, 1.0, 0.0)
    arrays = mdp_arrays(Problem(graph, Cluster("one", (device,), np.ones((1, 1)), np.zeros((1, 1)))), Mask())
    assert arrays.waits.tolist() == [0, int(is_alone), 1, 0]


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
    """By name, one entry per device of three with links of 8 bytes/s and 0.25 s."""
    devices = tuple(Device(name, "gpu", 100.0, 1.0, 1.0, 0.0) for name in "xyz")
    problem = Problem(graph, Cluster("three", devices, np.full((3, 3), 8.0), np.full((3, 3), 0.25)))
    env = PlacementEnv([problem])
    env.reset(seed=0)
    seen = env.step(np.int64(1))[0]
    return dict(
        zip(
            (feature.name for feature in DEVICE_FEATURES),
            seen["devices"].reshape(3, N_DEVICE_FEATURES).T,
            strict=True,
        )
    )


def test_consumer_features_of_a_hand_made_instance() -> None:
    """The output of b goes to d, placed with a, and to c, which also reads a's output and b's weight."""
    graph = build_graph(
        "consumers",
        "",
        [
            {"name": "a", "seconds": {"gpu": 1.0}, "colocate": 0},
            {"name": "weight", "type": "parameter", "seconds": {"gpu": 0.0}, "colocate": 1},
            {"name": "b", "seconds": {"gpu": 1.0}, "colocate": 1},
            {"name": "c", "seconds": {"gpu": 1.0}},
            {"name": "d", "seconds": {"gpu": 1.0}, "colocate": 0},
        ],
        [(0, 16.0, [3]), (1, 3.0, [2, 3]), (2, 4.0, [3, 4]), (3, 1.0, [4])],
    )
    table = features_after_the_first_op_went_to_the_second_device(graph)
    share = table["consumer_input_bytes_there"]
    np.testing.assert_allclose(share, [0.0, 1.0, 0.0])
    send = table["output_transfer_time"]
    np.testing.assert_allclose(send, np.log1p([0.75, 0.0, 0.75]), rtol=1e-6)
    # From another device 7 bytes, output and parameter, go to a's output sooner than its 16 bytes come.
    gather = table["consumer_transfer_time_over_least"]
    np.testing.assert_allclose(gather, np.log1p([1.125, 0.0, 1.125]), rtol=1e-6)
    # After a on y until 1 s, b there ends at 2 and c at 3; elsewhere b ends at 1, sends, and c at 3.125.
    onward = table["consumer_finish_over_earliest"]
    np.testing.assert_allclose(onward, np.log1p([0.125, 0.0, 0.125]), rtol=1e-5)


def test_consumer_features_follow_a_chain_to_the_first_op_that_reads_something_placed() -> None:
    table = features_after_the_first_op_went_to_the_second_device(branches())
    share = table["consumer_input_bytes_there"]
    np.testing.assert_allclose(share, [0.0, 1.0, 0.0])
    # The 4 bytes that reach the join go to the 80 that are there already, whatever lies between.
    gather = table["consumer_transfer_time_over_least"]
    np.testing.assert_allclose(gather, np.log1p([0.75, 0.0, 0.75]), rtol=1e-6)


def test_rollout_features_of_a_hand_made_instance() -> None:
    table = features_after_the_first_op_went_to_the_second_device(branches())
    # With `left` on y until 1 s, the branch on y ends at 4 and the join at 5; elsewhere it ends at 3, sends 4
    # bytes to y, and the join ends at 4.75. Mean finishes: (2 + 3 + 4 + 5) / 4 and (1 + 2 + 3 + 4.75) / 4.
    for horizon in HORIZONS:
        time_s = table[f"rollout_step_time_{horizon}_over_least"]
        np.testing.assert_allclose(time_s, np.log1p([0.0, 0.25, 0.0]), rtol=1e-6)
        finish_s = table[f"rollout_mean_finish_{horizon}_over_least"]
        np.testing.assert_allclose(finish_s, np.log1p([0.0, 0.8125, 0.0]), rtol=1e-6)


def test_on_the_path_gradients_of_weights_give_way() -> None:
    """Only an update, placed with a on y, reads `gradient`, which takes 4 s; `next` reads what a makes."""
    names = {"a": 1.0, "b": 1.0, "gradient": 4.0, "next": 1.0, "update": 0.0}
    ops = [{"name": name, "seconds": {"gpu": seconds}} for name, seconds in names.items()]
    ops[0] |= {"colocate": 0}
    ops[-1] |= {"colocate": 0, "phase": "optimizer"}
    graph = build_graph("gives-way", "", ops, [(0, 8.0, [3]), (1, 8.0, [2]), (2, 0.8, [4])])
    table = features_after_the_first_op_went_to_the_second_device(graph)
    # With b on y until 2 s, the gradient is there until 6 and `next` elsewhere until 3.25, or on y until 3;
    # with b elsewhere until 1, the gradient is there until 5, in 0.35 s on y, and `next` on y until 2.
    for horizon, later_s, step_s in (("far", (2 + 6 + 3.25 - 1 - 5 - 2) / 3, 0.65), ("path", 1.0, 1.0)):
        later = table[f"rollout_mean_finish_{horizon}_over_least"]
        np.testing.assert_allclose(later, np.log1p([0.0, later_s / 1.75, 0.0]), rtol=1e-6)
        time_s = table[f"rollout_step_time_{horizon}_over_least"]
        np.testing.assert_allclose(time_s, np.log1p([0.0, step_s / 1.75, 0.0]), rtol=1e-6)


def test_rollouts_see_when_ops_beyond_them_could_start() -> None:
    """The last of twelve ops, which takes 100 s, reads 8 bytes from a on y; those between take no time."""
    ops = [
        {"name": f"op{at}", "seconds": {"gpu": seconds}}
        for at, seconds in enumerate([1.0, 1.0, *[0.0] * 9, 100.0])
    ]
    table = features_after_the_first_op_went_to_the_second_device(
        build_graph("beyond", "", ops, [(0, 8.0, [11])])
    )
    # It could start on y at 1 s, or elsewhere at 2.25; with the op at hand on y, on y at 2.
    for horizon in HORIZONS:
        time_s = table[f"rollout_step_time_{horizon}_over_least"]
        np.testing.assert_allclose(time_s, np.log1p([0.0, 1 / 34, 0.0]), rtol=1e-6)


def test_features_of_a_unit_are_those_of_all_its_compute_ops() -> None:
    ops = [("a", 1.0, 0), ("b", 1.0, 1), ("c", 2.0, 0), ("d", 3.0, 1)]
    graph = build_graph(
        "units", "", [{"name": name, "seconds": {"gpu": s}, "colocate": unit} for name, s, unit in ops], []
    )
    table = features_after_the_first_op_went_to_the_second_device(graph)
    np.testing.assert_allclose(table["op_time"], np.log1p([4.0 / 1.75] * 3), rtol=1e-6)
    np.testing.assert_allclose(table["load_over_mean"], [-1.0, 2.0, -1.0])


def test_horizons_of_rollouts_count_decisions() -> None:
    """The last of ten ops of one unit reads 160 bytes from the op at hand: far ahead, no decision away."""
    ops = [{"name": f"op{at}", "seconds": {"gpu": 1.0}, "colocate": int(at == 1)} for at in range(11)]
    table = features_after_the_first_op_went_to_the_second_device(
        build_graph("far", "", ops, [(1, 160.0, [10])])
    )
    # On y all run one after the other, until 11 s; elsewhere the bytes arrive at 21.25 s.
    time_s = table[f"rollout_step_time_{HORIZONS[0]}_over_least"]
    np.testing.assert_allclose(time_s, np.log1p([11.25, 0.0, 11.25]), rtol=1e-6)


@pytest.mark.parametrize(("n_others", "decided"), [(80, FAR), (LONG, FAR_OF_LONG)])
def test_the_far_horizon_includes_what_decided_units_run_later(n_others: int, decided: int) -> None:
    """The unit at hand runs one more op after many others: the rollout decides some of them, then runs it."""
    units = [0, 1, *range(2, 2 + n_others), 1]
    ops = [{"name": f"op{at}", "seconds": {"gpu": 1.0}, "colocate": unit} for at, unit in enumerate(units)]
    table = features_after_the_first_op_went_to_the_second_device(
        build_graph("late", "", ops, [(0, 800.0, [len(ops) - 1])])
    )
    # It reads 800 bytes from a on y, which end at 1 s: elsewhere they arrive at 101.25 s. On y, a and
    # the decided ops share three devices, and it comes last.
    time_s = np.expm1(table[f"rollout_step_time_{HORIZONS[-1]}_over_least"])
    assert time_s[1] == 0.0
    np.testing.assert_allclose(time_s[[0, 2]], 102.25 - math.ceil((decided + 1) / 3) - 1.0, rtol=1e-5)
    assert np.expm1(table[f"rollout_step_time_{HORIZONS[0]}_over_least"]).max() < 2.0


def test_rollouts_keep_to_the_memory() -> None:
    """An op that reads 80 bytes must leave the device they are on, whose memory its parameters exceed."""
    ops = [
        {"name": name, "seconds": {"gpu": 1.0}, "resident_bytes": size} for name, size in (("a", 6), ("b", 6))
    ]
    devices = tuple(Device(name, "gpu", memory, 1.0, 1.0, 0.0) for name, memory in (("x", 10.0), ("y", 20.0)))
    cluster = Cluster("two", devices, np.full((2, 2), 8.0), np.full((2, 2), 0.25))
    seen, _ = PlacementEnv([Problem(build_graph("g", "", ops, [(0, 80.0, [1])]), cluster)]).reset(seed=0)
    table = dict(
        zip(
            (feature.name for feature in DEVICE_FEATURES),
            seen["devices"].reshape(2, N_DEVICE_FEATURES).T,
            strict=True,
        )
    )
    time_s = table[f"rollout_step_time_{HORIZONS[0]}_over_least"]
    np.testing.assert_allclose(time_s, np.log1p([10.25, 0.0]), rtol=1e-6)


def test_improve_has_no_rollouts() -> None:
    env = PlacementEnv([chain_problem()], mdp="improve")
    seen, _ = env.reset(seed=0)
    assert not seen["devices"].reshape(2, N_DEVICE_FEATURES)[:, len(columns_of("consumers")) :].any()
