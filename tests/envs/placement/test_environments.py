"""Both environments: checkers, the identity of returns, equality step by step, what is reached and drawn."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

from envs.cluster.presets import get_cluster
from envs.placement.env import PlacementEnv
from envs.placement.episodes import EpisodeBatch, EpisodeResult, EpisodeSettings, MdpError
from envs.placement.generator import Rounds
from envs.placement.masks import Mask
from envs.placement.observation.graph_observation import GraphObservation
from envs.placement.render import COLUMNS, GAP, IDLE, MARK, PIXELS, ROW
from envs.placement.reward import Measured, Reward, simulated
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import InfeasibleError, Problem
from envs.simulator.simulate import simulate_problem, step_times_s
from graphs import build_graph
from graphs.orders import ORDERS
from graphs.system.array_types import BoolArray, IntArray
from tests.envs.hand_made_problems import chain_problem, cluster_of, cut_problem
from tests.envs.random_problems import random_cluster, random_graph

ALL_ORDERS = tuple(ORDERS)


def some_problems(seed: int = 0) -> list[Problem]:
    """Graphs of several sizes on clusters of several widths and rules."""
    rng = np.random.default_rng(seed)
    schedules = (None, None, "program", None)
    clusters = [
        random_cluster(rng, n_devices, schedule=schedule)
        for n_devices, schedule in zip((1, 2, 4, 3), schedules, strict=True)
    ]
    return [
        Problem(random_graph(rng, 12 + 9 * i, name=f"g{i}"), cluster) for i, cluster in enumerate(clusters)
    ]


@pytest.mark.parametrize(
    ("mdp", "mask", "reward", "render_mode"),
    [
        ("construct", "memory", simulated, "ansi"),
        ("construct", "none", Measured(lambda problem, device_of: 0.5), "rgb_array"),
        ("improve", "memory", Measured(lambda problem, device_of: 0.5), "ansi"),
        ("improve", "none", simulated, "rgb_array"),
    ],
)
def test_checkers_find_nothing(mdp: str, mask: str, reward: Reward, render_mode: str) -> None:
    """Every device has free memory for every op: the checkers act at random, without masks."""
    problems = [
        Problem(random_graph(np.random.default_rng(seed), 20, name=f"g{seed}"), get_cluster("2xk80"))
        for seed in range(2)
    ]
    settings = {"orders": ALL_ORDERS, "mdp": mdp, "mask": mask, "reward": reward}
    env = gym.make("placewalk/Placement-v1", problems=problems, render_mode=render_mode, **settings)
    gymnasium_check(env.unwrapped)
    sb3_check(env.unwrapped)
    of_graphs = GraphObservation(env)
    sb3_check(of_graphs)
    with pytest.warns(UserWarning, match="has a wrapper applied to it"):
        gymnasium_check(of_graphs, skip_render_check=True)


def test_an_environment_by_name_is_made_again_from_its_stored_spec() -> None:
    names = {"families": "ptb", "cluster": ["4xv100", "2xk80"], "orders": ["bfs", "topo"], "mask": "none"}
    made = gym.make("placewalk/Placement-v1", granularity="module", mdp="improve", **names)
    again = gym.make(EnvSpec.from_json(made.spec.to_json()))
    pairs = {(problem.graph.family, problem.cluster.name) for problem in again.unwrapped.problems}
    assert pairs == {("ptb", "4xv100"), ("ptb", "2xk80")}
    for seed in range(4):
        (one, _), (other, _) = made.reset(seed=seed), again.reset(seed=seed)
        assert all(np.array_equal(one[name], other[name]) for name in one)
        assert made.step(1)[1] == again.step(1)[1]
    with pytest.raises(MdpError, match="problems are given; leave out families"):
        gym.make("placewalk/Placement-v1", problems=[chain_problem()], families="ptb")


@pytest.mark.parametrize("order", ALL_ORDERS)
@pytest.mark.parametrize("mdp", ["construct", "improve"])
def test_return_is_the_step_time(order: str, mdp: str) -> None:
    rng = np.random.default_rng(2)
    for problem in some_problems(4):
        batch = EpisodeBatch([problem], 1, EpisodeSettings((order,), mdp))
        batch.begin(0, 0, 0, rng)
        first = simulate_problem(
            problem, np.full(problem.graph.n_ops, int(np.argmin(problem.single_device_s)))
        )
        total, done, last = 0.0, np.array([False]), np.zeros(0)
        while not done[0]:
            action = rng.choice(np.flatnonzero(batch.observation.mask[0]))
            reward, done = batch.step(np.array([action]))
            total += float(reward[0])
            last = batch.device_of(0)
        step_time_s = simulate_problem(problem, last).total_s
        gain = -step_time_s if mdp == "construct" else first.total_s - step_time_s
        assert total == pytest.approx(gain / problem.scale_s, abs=1e-9)
        result = batch.result(0)
        assert simulate_problem(problem, result.device_of).total_s == result.step_time_s
        assert result.step_time_s <= step_time_s


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mdp", ["construct", "improve"])
def test_the_vec_env_equals_single_episodes_and_draws_every_problem_once_a_round(
    mdp: str, threads: int
) -> None:
    """Each episode is repeated in a single environment, decision by decision."""
    problems, settings = some_problems(), {"orders": ("bfs",), "mdp": mdp}
    env = PlacementVecEnv(problems, 3, seed=5, threads=threads, **settings)
    single = PlacementEnv(problems, **settings)
    seen, rng, taken = env.reset(), np.random.default_rng(0), [[] for _ in range(3)]
    ended: list[int] = []
    while len(ended) < 4 * len(problems):
        masks = env.env_method("action_masks")
        np.testing.assert_array_equal(masks, seen["mask"] > 0)
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        before = seen
        seen, rewards, dones, infos = env.step(actions)
        for episode, (action, done, info) in enumerate(zip(actions, dones, infos, strict=True)):
            taken[episode].append((before["devices"][episode], action, rewards[episode]))
            assert done == ("result" in info)
            if done:
                ended.append(info["result"].problem)
                shown, _ = single.reset(options={"problem": ended[-1]})
                for devices, chosen, reward in taken[episode]:
                    np.testing.assert_allclose(shown["devices"], devices, rtol=1e-5, atol=1e-5)
                    shown, same, _, _, last = single.step(chosen)
                    assert same == pytest.approx(reward, rel=1e-5, abs=1e-6)
                assert last["result"].step_time_s == info["result"].step_time_s
                assert (last["result"].device_of == info["result"].device_of).all()
                assert info["episode"]["l"] == len(taken[episode])
                taken[episode] = []
    counts = np.bincount(ended, minlength=len(problems))
    assert counts.max() - counts.min() <= 3


@pytest.mark.parametrize("mdp", ["construct", "improve"])
def test_the_return_is_minus_what_the_reward_measures(mdp: str) -> None:
    """In `improve` the time of the best placement is measured, and what the moves gained stays besides."""
    problem, measured = some_problems()[1], dict[bytes, float]()

    def timer(_: Problem, device_of: IntArray) -> float:
        measured[device_of.tobytes()] = 0.25 * (1 + len(measured))
        return measured[device_of.tobytes()]

    envs = [PlacementEnv([problem], mdp=mdp, reward=reward) for reward in (Measured(timer), simulated)]
    for _ in range(3):
        returned, results = [0.0, 0.0], []
        for number, env in enumerate(envs):
            rng, done = np.random.default_rng(5), False
            env.reset(seed=3)
            while not done:
                action = rng.choice(np.flatnonzero(env.action_masks()))
                _, reward, done, _, info = env.step(action)
                returned[number] += reward
            results.append(info["result"])
        timed, plain = results
        assert timed.step_time_s == measured[timed.device_of.tobytes()]
        assert (timed.device_of == plain.device_of).all()
        assert returned[0] == pytest.approx(timed.episode_return)
        gained = plain.ratio_to_single - timed.ratio_to_single
        assert returned[0] - returned[1] == pytest.approx(gained)
    assert len(measured) == 1


@pytest.mark.parametrize("seed", range(3))
def test_no_episode_is_better_than_a_known_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, best = cut_problem(rng)
    env = PlacementEnv([problem], orders=("topo",), memory_penalty=0.0)
    returns = []
    for episode in range(50):
        observation, _ = env.reset(seed=episode)
        done = False
        while not done:
            drawn = int(rng.integers(problem.n_devices))
            device = best[int(observation["op"][0])] if episode == 0 else drawn
            observation, _, done, _, info = env.step(device)
        returns.append(info["result"].episode_return)
    assert returns[0] == pytest.approx(-1 / problem.n_devices)
    assert max(returns[1:]) <= returns[0] + 1e-12


def test_generators_draw_the_problems_that_they_are_given() -> None:
    env = PlacementEnv(some_problems(), generator=Rounds(only=[1, 3]))
    drawn = [int(env.reset()[0]["problem"][0]) for _ in range(6)]
    assert [sorted(drawn[at : at + 2]) for at in (0, 2, 4)] == [[1, 3]] * 3


def test_repeated_episodes_are_in_one_order() -> None:
    generator, rng = Rounds(repeats=4), np.random.default_rng(0)
    drawn = [generator.draw(3, len(ALL_ORDERS), rng) for _ in range(3 * 4 * 5)]
    groups = [drawn[first : first + 4] for first in range(0, len(drawn), 4)]
    assert all(len(set(group)) == 1 for group in groups)
    assert len({group[0].order for group in groups}) > 1


def test_a_device_without_free_memory_is_masked_and_refused() -> None:
    env = PlacementEnv([chain_problem(memory_bytes=15.0)])
    env.reset(seed=0)
    assert env.action_masks().tolist() == [True, True]
    env.step(np.int64(1))
    assert env.action_masks().tolist() == [True, False]
    for device in (1, 2, -1, -2):
        with pytest.raises(ValueError, match=r"no free memory .* or mask='none' for algorithms"):
            env.step(np.int64(device))


def test_infeasible_graphs_are_refused() -> None:
    problem = chain_problem()
    with pytest.raises(InfeasibleError, match=r"op 'a'.*largest device"):
        EpisodeBatch([problem.with_memory(np.full(2, 9.0))], 1)
    alone = Problem(problem.graph, cluster_of("slow")).with_memory(np.array([15.0]))
    with pytest.raises(InfeasibleError, match="together"):
        EpisodeBatch([alone], 1)


@pytest.mark.parametrize("order", ["topo", "random", "bfs"])
@pytest.mark.parametrize("mdp", ["construct", "improve"])
def test_a_forked_episode_goes_on_as_its_source_does(mdp: str, order: str) -> None:
    problems = some_problems()[1:]
    batch = EpisodeBatch(problems, 2, EpisodeSettings((order,), mdp))
    rng = np.random.default_rng(0)
    for episode, problem in enumerate((2, 0)):
        batch.begin(episode, problem, 0, rng)
    for _ in range(5):
        batch.step(batch.observation.mask.argmax(axis=1))
    batch.fork(0, 1)
    done = np.zeros(2, dtype=bool)
    while not done.any():
        for seen in batch.observation:
            np.testing.assert_array_equal(seen[0], seen[1])
        np.testing.assert_array_equal(batch.device_of(0), batch.device_of(1))
        assert batch.time_s()[0] == batch.time_s()[1]
        _, done = batch.step(np.array([1, 1]))
    assert done.all()
    first, second = batch.result(0), batch.result(1)
    assert (first.problem, first.order, first.decisions) == (second.problem, second.order, second.decisions)
    assert (first.step_time_s, first.episode_return) == (second.step_time_s, second.episode_return)


def test_a_mask_of_ones_own_holds() -> None:
    """Each unit may be on two devices only, which go round."""

    def allowed(problem: Problem) -> BoolArray:
        units, n_devices = np.arange(len(problem.graph.units)), problem.n_devices
        return np.asarray(np.subtract.outer(units, np.arange(n_devices)) % n_devices < 2)

    problems, rng, ended = some_problems(), np.random.default_rng(0), list[EpisodeResult]()
    env = PlacementVecEnv(problems, 3, orders=ALL_ORDERS, mask=Mask(allowed=allowed))
    env.reset()
    while len(ended) < 3 * len(problems):
        chosen = [rng.choice(np.flatnonzero(mask)) for mask in env.action_masks()]
        ended += [info["result"] for info in env.step(np.array(chosen))[-1] if info]
    for result in ended:
        problem, placed = problems[result.problem], np.flatnonzero(result.device_of >= 0)
        assert allowed(problem)[problem.graph.unit_of[placed], result.device_of[placed]].all()


def walked(problem: Problem, order: str, mask: str) -> tuple[IntArray, list[EpisodeResult]]:
    """Walks to all placements, int (n, n_ops), by another device where its own is masked."""
    n_units, episodes = len(problem.graph.units), problem.n_devices ** len(problem.graph.units)
    by_unit = np.array(list(itertools.product(range(problem.n_devices), repeat=n_units)))
    batch, each = EpisodeBatch([problem], episodes, EpisodeSettings((order,), mask=mask)), np.arange(episodes)
    results: dict[int, EpisodeResult] = {}
    for episode in each.tolist():
        batch.begin(episode, 0, 0, np.random.default_rng(episode))
    for _ in range(n_units):
        chosen = by_unit[each, problem.graph.unit_of[batch.observation.op[:, 0]]]
        offered = batch.observation.mask[each, chosen] > 0
        _, done = batch.step(np.where(offered, chosen, batch.observation.mask.argmax(axis=1)))
        for episode in np.flatnonzero(done).tolist():
            results.setdefault(episode, batch.result(episode))
    return np.ascontiguousarray(by_unit[:, problem.graph.unit_of]), [results[at] for at in each.tolist()]


@pytest.mark.parametrize("order", ORDERS)
def test_without_memory_masks_every_order_reaches_every_placement_and_its_step(order: str) -> None:
    rng = np.random.default_rng(0)
    problem = Problem(random_graph(rng, 10), random_cluster(rng, 2))
    placements, results = walked(problem, order, "none")
    np.testing.assert_array_equal([result.device_of for result in results], placements)
    assert [result.step_time_s for result in results] == step_times_s(problem, placements).tolist()


def test_a_memory_mask_keeps_the_placements_but_some_orders_have_dead_ends() -> None:
    sizes = {"a": 1, "b": 1, "c": 3, "d": 3}
    ops = [{"name": op, "seconds": {"gpu": size}, "resident_bytes": size} for op, size in sizes.items()]
    problem = Problem(build_graph("g", "f", ops, []), cluster_of("gpu", "gpu")).with_memory(np.full(2, 4.0))
    dead_ends, reached = {}, {}
    for order in ("alpha", "cost"):
        _, results = walked(problem, order, "memory")
        dead_ends[order] = sum(result.infeasible for result in results)
        reached[order] = {tuple(result.device_of.tolist()) for result in results if not result.infeasible}
    assert reached["alpha"] == reached["cost"]
    assert len(reached["cost"]) == 4
    assert dead_ends["alpha"] > 0
    assert dead_ends["cost"] == 0


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
