"""`PlacementPPO` is an algorithm of SB3: its loop gives what SB3's own gives, and callbacks work on it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecCheckNan
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from agent.learn.actor_critic import PlacementPolicy
from agent.learn.callbacks import AverageWeights, Checkpoints, TimeLimit
from agent.learn.checkpoints import CheckpointError
from agent.learn.config import ConfigError
from agent.learn.evaluation import CompareWithSearch, DrawPlacement
from agent.learn.metrics import OVER_SEARCH
from agent.learn.ppo import TRAINING, PlacementPPO
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.serialization import load_policy
from agent.policy.shape import current_shape
from envs.cluster.presets import get_cluster
from envs.placement.env import PlacementEnv
from envs.placement.episodes import EpisodeResult
from envs.placement.generator import Rounds
from envs.placement.reward import Measured
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_family
from graphs.granularity import with_granularity
from graphs.system.array_types import IntArray
from graphs.system.errors import InputError
from tests.agent.placement_cases import random_problem
from tests.envs.hand_made_problems import scarce_problem

N_STEPS, N_PLACES = 30, 4


def problems(n: int = 3) -> list[Problem]:
    return [random_problem(seed, 12) for seed in range(n)]


def small_policy() -> Policy:
    """A policy of no training, whose choices are far from uniform."""
    policy = Policy(PlacementNetwork(current_shape("sage", 16, 1)))
    torch.nn.init.normal_(policy.network.actor[-1].weight)
    return policy


def make(env: Any, cls: type[PlacementPPO] = PlacementPPO, **arguments: Any) -> PlacementPPO:
    settings = {"n_steps": N_STEPS, "batch_size": 40, "n_epochs": 2, "seed": 0, "device": "cpu"}
    policy_kwargs = {"make_policy": small_policy}
    return cls("PlacementPolicy", env, policy_kwargs=policy_kwargs, **{**settings, **arguments})


class DrawnPolicy(PlacementPolicy):
    """Draws devices by given numbers from 0 to 1, as the compiled loop does."""

    draws: np.ndarray

    def forward(
        self, obs: Mapping[str, Tensor], deterministic: bool = False, action_masks: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        distribution = self.get_distribution(obs, action_masks)
        now, DrawnPolicy.draws = DrawnPolicy.draws[:, :1], DrawnPolicy.draws[:, 1:]
        actions = (distribution.distribution.probs.cumsum(1) <= torch.from_numpy(now)).sum(1)
        return actions, self.predict_values(obs), distribution.log_prob(actions)


class PlainPPO(PlacementPPO):
    """Collects rollouts by the loop of SB3."""

    policy_aliases = {"PlacementPolicy": DrawnPolicy}  # noqa: RUF012
    collect_rollouts = MaskablePPO.collect_rollouts


def first_gradients(ppo: PlacementPPO) -> list[np.ndarray]:
    """Learns from one rollout, and returns the gradients of the first step of the optimizer."""
    found: list[np.ndarray] = []

    def keep(*_: object) -> None:
        if not found:
            gradients = (weight.grad for weight in ppo.policy.parameters())
            found.extend(gradient.numpy().copy() for gradient in gradients if gradient is not None)

    ppo.policy.optimizer.register_step_pre_hook(keep)
    np.random.seed(0)  # noqa: NPY002 (SB3 shuffles with it)
    ppo.learn(N_STEPS * N_PLACES)
    return found


@pytest.mark.parametrize(
    ("cluster", "mdp"), [("2x4xa100", "construct"), ("placeto-k80:3", "construct"), ("gpu+cpu", "improve")]
)
def test_the_loop_of_sb3_gives_the_same_rollout_and_gradients(cluster: str, mdp: str) -> None:
    graph = with_granularity(load_family("cifar10")[0], "module")
    some = [*problems(2), scarce_problem(), Problem(graph, get_cluster(cluster))]
    compiled, plain = (
        make(PlacementVecEnv(some, N_PLACES, mdp=mdp, orders=("topo", "random"), passes=1), cls)
        for cls in (PlacementPPO, PlainPPO)
    )
    compiled.restart()
    DrawnPolicy.draws = compiled.env.begin_rollout(N_STEPS)
    gradients, same_gradients = first_gradients(compiled), first_gradients(plain)
    assert not DrawnPolicy.draws.size
    ours, theirs = compiled.rollout_buffer, plain.rollout_buffer
    for name, rows in ours.observations.items():
        np.testing.assert_array_equal(rows, theirs.observations[name])
    for name in ("actions", "action_masks"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for name in ("rewards", "values", "log_probs", "advantages", "returns"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-5)
    assert sum(float(np.abs(gradient).sum()) for gradient in gradients) > 0.1
    for one, other in zip(gradients, same_gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    assert compiled.num_timesteps == plain.num_timesteps == N_STEPS * N_PLACES
    assert list(compiled.ep_info_buffer)
    for one, other in zip(compiled.ep_info_buffer, plain.ep_info_buffer, strict=True):
        assert (one["r"], one["l"]) == (other["r"], other["l"])


class Watcher(BaseCallback):
    """Keeps what a callback of a user's is shown."""

    def __init__(self, stop_after: int = 10**9) -> None:
        super().__init__()
        self.rewards, self.ended, self.steps = list[float](), list[Any](), list[int]()
        self.events, self._stop_after = list[str](), stop_after

    def _on_training_start(self) -> None:
        self.events.append("training")

    def _on_rollout_start(self) -> None:
        self.events.append("start")

    def _on_rollout_end(self) -> None:
        self.events.append("end")

    def _on_step(self) -> bool:
        self.steps.append(self.num_timesteps)
        self.rewards += self.locals["rewards"].tolist()
        pairs = zip(self.locals["dones"], self.locals["infos"], strict=True)
        self.ended += [info["result"] for done, info in pairs if done]
        return len(self.steps) < self._stop_after


def roll_out(ppo: PlacementPPO, n_steps: int) -> list[EpisodeResult]:
    """Fills the buffer; returns the results of the episodes that ended."""
    watcher = Watcher()
    watcher.init_callback(ppo)
    assert ppo.collect_rollouts(ppo.env, watcher, ppo.rollout_buffer, n_steps)
    return watcher.ended


def test_rollouts_do_not_depend_on_the_threads_or_on_what_was_before_a_restart() -> None:
    rows = []
    for threads in (1, 3):
        ppo = make(PlacementVecEnv(problems(), N_PLACES, threads=threads), n_steps=40)
        ppo.restart()
        if threads == 1:
            roll_out(ppo, 25)
        ppo.restart()
        roll_out(ppo, 40)
        buffer = ppo.rollout_buffer
        rows.append([*buffer.observations.values(), buffer.actions, buffer.rewards, buffer.episode_starts])
    for one, other in zip(*rows, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_return_is_what_a_timer_measures() -> None:
    """Of some placements it says that they cannot be run."""

    def timer(problem: Problem, device_of: IntArray) -> float:
        return np.inf if device_of.sum() % 2 else 3.0 * simulate_problem(problem, device_of).total_s

    found = []
    for reward in (Measured(timer), simulate_problem):
        ppo = make(PlacementVecEnv(problems(), N_PLACES, reward=reward), n_steps=90)
        ppo.restart()
        found.append((roll_out(ppo, 90), ppo.rollout_buffer.rewards.sum()))
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


def test_a_policy_is_saved_with_its_algorithm_alone(tmp_path: Path) -> None:
    ppo = make(PlacementVecEnv(problems(), N_PLACES))
    with pytest.raises(
        InputError, match=r"saved by model.save\(folder\), and load_policy\(folder\) reads it"
    ):
        ppo.policy.save(tmp_path / "policy.pt")
    torch.save({}, tmp_path / "theirs.pt")
    with pytest.raises(InputError, match=r"theirs.pt: read a policy by load_policy\(folder\)"):
        PlacementPolicy.load(tmp_path / "theirs.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["theirs.pt"]


@pytest.mark.parametrize("how", ["parameters", "state_dict", "vector", "folder"])
def test_each_way_of_sb3_to_hand_weights_on_gives_the_same_scores(how: str, tmp_path: Path) -> None:
    env = PlacementVecEnv(problems(), N_PLACES)
    one, other = make(env), make(env, seed=1)
    seen = {name: torch.as_tensor(rows) for name, rows in env.reset().items()}
    before = other.policy._scores(seen)[0]
    if how == "parameters":
        other.set_parameters(one.get_parameters())
    elif how == "state_dict":
        other.policy.load_state_dict(one.policy.state_dict())
    elif how == "vector":
        other.policy.load_from_vector(one.policy.parameters_to_vector())
    else:
        one.save(tmp_path / "model")
        sb3s = {"custom_objects": {"learning_rate": 1e-4}, "print_system_info": False}
        other = PlacementPPO.load(tmp_path / "model", env, **sb3s)
        assert other.learning_rate == 1e-4
    scores, right = other.policy._scores(seen)[0], one.policy._scores(seen)[0]
    assert torch.equal(scores, right)
    assert not torch.allclose(before, right)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": []}, "env has no problems to place; use a PlacementVecEnv"),
        ({"env": gymnasium.make("CartPole-v1")}, "env has no problems to place"),
        ({"n_steps": 0}, "n_steps is 0; use at least 2"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; use a number"),
        ({"advantage": "mine"}, "advantage is 'mine'; use op or graph or batch"),
        ({"n_envs": 4}, "unknown argument 'n_envs'; use those of MaskablePPO"),
        ({"seed": -1}, "seed is -1; use a whole number"),
        ({"policy": 3}, "policy is 3; use a string"),
    ],
)
def test_wrong_arguments_of_the_algorithm_are_one_line(arguments: dict[str, Any], message: str) -> None:
    env = PlacementVecEnv(problems(1), 2)
    with pytest.raises(ConfigError, match=message):
        PlacementPPO(**{"policy": "PlacementPolicy", "env": env, "device": "cpu", **arguments})


def test_wrong_arguments_of_its_methods_are_one_line(tmp_path: Path) -> None:
    ppo = make(PlacementVecEnv(problems(1), N_PLACES))
    with pytest.raises(ConfigError, match="total_timesteps is '10k'; use a number"):
        ppo.learn("10k")
    with pytest.raises(ConfigError, match=r"parameters are a PosixPath; use .* PlacementPPO.load\(folder"):
        ppo.set_parameters(tmp_path)
    with pytest.raises(ConfigError, match="env has no problems to place"):
        ppo.set_env(problems())
    for call in (ppo.save, lambda path: PlacementPPO.load(path, ppo.env)):
        with pytest.raises(ConfigError, match="path is 3; use a string"):
            call(3)
    with pytest.raises(ConfigError, match="callback has two CompareWithSearch, whose names"):
        ppo.learn(1, callback=[CompareWithSearch(problems(1)), CompareWithSearch(problems(2))])
    with pytest.raises(ConfigError, match="seconds is '80'; use a number, at least 0"):
        TimeLimit("80")


def test_callbacks_see_each_step_and_can_stop() -> None:
    env, seen = PlacementVecEnv(problems(), N_PLACES), Watcher()
    ppo = make(env).learn(2 * N_STEPS * N_PLACES, callback=[seen])
    assert seen.events == ["training", "start", "end", "start", "end"]
    assert seen.steps == list(range(N_PLACES, 2 * N_STEPS * N_PLACES + 1, N_PLACES))
    assert len(seen.ended) > 10
    assert sum(result.episode_return for result in seen.ended) >= sum(seen.rewards) - 1e-3
    assert {"rollout/ep_rew_mean", "time/fps"}.isdisjoint(ppo.logger.name_to_value)
    stopped = make(env).learn(10 * N_STEPS * N_PLACES, callback=Watcher(stop_after=7))
    assert stopped.num_timesteps == 7 * N_PLACES


def test_tensorboard_has_the_names_of_sb3(tmp_path: Path) -> None:
    n, ppo = N_STEPS * N_PLACES, make(PlacementVecEnv(problems(), N_PLACES), tensorboard_log=str(tmp_path))
    compare = CompareWithSearch(problems(), every=2)
    ppo.learn(3 * n, callback=[compare, DrawPlacement(compare)])
    events = EventAccumulator(str(tmp_path / "PlacementPPO_1")).Reload()
    names = {"rollout/ep_rew_mean", "train/approx_kl", "train/entropy_loss", "time/fps", "eval/mean_reward"}
    assert names <= set(events.Tags()["scalars"])
    for tag in ("compare/to_annealing", "compare/trained_on"):
        assert [point.step for point in events.Scalars(tag)] == [0, n, 2 * n, 3 * n]
    assert [picture.step for picture in events.Images("eval/placed_now")] == [0, n, 2 * n, 3 * n]
    assert "custom_scalars__config__" in events.Tags()["tensors"]
    assert "_hparams_/session_start_info" in events.summary_metadata
    assert f"{compare.first[OVER_SEARCH]:.3f} -> {compare.last[OVER_SEARCH]:.3f}" in compare.summary


def test_evaluation_and_checkpoints_of_sb3(tmp_path: Path) -> None:
    """The policy is evaluated on problems that it does not learn from, and a checkpoint goes on."""
    env = PlacementVecEnv(problems(4), N_PLACES, generator=Rounds(only=[0, 1, 2]))
    others = PlacementVecEnv(problems(4), 2, generator=Rounds(only=[3]))
    evaluation = EvalCallback(others, eval_freq=N_STEPS, n_eval_episodes=2, verbose=0, log_path=str(tmp_path))
    kept = CheckpointCallback(N_STEPS, str(tmp_path), name_prefix="kept")
    ppo = make(env).learn(2 * N_STEPS * N_PLACES, callback=[evaluation, kept])
    first, last = np.load(tmp_path / "evaluations.npz")["results"].mean(1)
    assert -10.0 < min(first, last) <= max(first, last) < -0.2
    again = PlacementPPO.load(tmp_path / f"kept_{2 * N_STEPS * N_PLACES}_steps.zip", env)
    assert (again.n_steps, again.batch_size, again.num_timesteps) == (N_STEPS, 40, ppo.num_timesteps)


def test_a_saved_model_goes_on_as_the_one_that_was_saved(tmp_path: Path) -> None:
    ppo = make(PlacementVecEnv(problems(), N_PLACES)).learn(N_STEPS * N_PLACES)
    ppo.save(tmp_path / "model")
    weights = []
    for model in (PlacementPPO.load(tmp_path / "model", PlacementVecEnv(problems(), N_PLACES)), ppo):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 (SB3 shuffles with it)
        model.set_env(PlacementVecEnv(problems(), N_PLACES, seed=5))
        model.learn(N_STEPS * N_PLACES, reset_num_timesteps=False)
        assert model.num_timesteps == 2 * N_STEPS * N_PLACES
        weights.append(model.policy.state_dict())
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())
    assert load_policy(tmp_path / "model").network.shape == ppo.policy.placer.network.shape


def test_a_training_resumed_from_a_checkpoint_learns_what_one_that_went_on_learns(tmp_path: Path) -> None:
    def learn(model: PlacementPPO, updates: int, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        average = AverageWeights(0.9)
        callbacks = [TimeLimit(10**6), average, Checkpoints(folder, every=2)]
        model.learn(updates * N_STEPS * N_PLACES, callbacks, reset_num_timesteps=False)
        assert model.num_timesteps == model.updates * N_STEPS * N_PLACES
        return model.policy.state_dict(), average.state_dict()

    whole, half = (make(PlacementVecEnv(problems(), N_PLACES)) for _ in range(2))
    weights, average = learn(whole, 5, tmp_path / "whole")
    learn(half, 2, tmp_path / "half")
    env = PlacementVecEnv(problems(), N_PLACES)
    resumed, same_average = learn(
        PlacementPPO.load(tmp_path / "half" / "00000002.safetensors", env), 3, tmp_path / "half"
    )
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in weights.items())
    assert all(
        torch.equal(tensor, same_average[name]) for name, tensor in average.items() if name != "updates"
    )
    assert [path.stem for path in sorted((tmp_path / "half").iterdir())] == ["00000004", "00000005"]


def test_a_model_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    env = PlacementVecEnv(problems(), N_PLACES)
    make(env).save(tmp_path / "model")
    with pytest.raises(ValueError, match="needs env="):
        PlacementPPO.load(tmp_path / "model")
    (tmp_path / "model" / TRAINING).write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="cannot be read"):
        PlacementPPO.load(tmp_path / "model", env)


def test_a_full_disk_leaves_the_save_before(tmp_path: Path) -> None:
    env, folder = PlacementVecEnv(problems(), N_PLACES), tmp_path / "model"
    ppo = make(env)
    ppo.save(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / TRAINING).unlink()
    (folder / TRAINING).symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left on device: '{folder / TRAINING}'"):
        ppo.learn(N_STEPS * N_PLACES).save(folder)
    (folder / TRAINING).unlink()
    (folder / TRAINING).write_bytes(before[TRAINING])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    PlacementPPO.load(folder, env)


def test_a_training_of_another_save_is_refused(tmp_path: Path) -> None:
    ppo = make(PlacementVecEnv(problems(), N_PLACES))
    ppo.save(tmp_path / "old")
    ppo.learn(N_STEPS * N_PLACES).save(tmp_path / "new")
    (tmp_path / "old" / TRAINING).replace(tmp_path / "new" / TRAINING)
    with pytest.raises(CheckpointError, match=f"{TRAINING}: was not saved with the policy beside it"):
        PlacementPPO.load(tmp_path / "new", ppo.env)


def test_scripts_find_the_former_names() -> None:
    with pytest.warns(DeprecationWarning, match="agent.training is agent.learn"):
        former = importlib.import_module("agent.training.reinforcement.ppo")
    assert former.PlacementPPO is PlacementPPO


def wrapped(some: Sequence[Problem]) -> Any:
    return VecCheckNan(PlacementVecEnv(some, 2))


def stepped_singly(some: Sequence[Problem]) -> Any:
    return DummyVecEnv([lambda: PlacementEnv(some), lambda: PlacementEnv(some)])


@pytest.mark.parametrize("wrap", [wrapped, stepped_singly, PlacementEnv])
def test_other_environments_are_stepped_by_sb3(wrap: Callable[[Sequence[Problem]], Any]) -> None:
    ppo = make(wrap(problems())).learn(2 * N_STEPS)
    assert ppo.num_timesteps == 2 * N_STEPS
    assert ppo.ep_info_buffer or wrap is stepped_singly


def test_the_average_forgets_by_its_decay_and_sooner_at_first():
    ppo, average = make(PlacementVecEnv(problems(1), 2)), AverageWeights(decay=0.5)
    average.init_callback(ppo)
    average.on_training_start({}, {})

    def after_update_to(value):
        with torch.no_grad():
            for weight in ppo.policy.placer.network.parameters():
                weight.fill_(value)
        ppo.updates += 1
        average.on_rollout_start()
        average.on_rollout_start()  # a second call for the same update
        return next(average.policy.network.parameters()).flatten()[0].item()

    # Kept of the average: nothing, then 2/11, then 3/12.
    seen = [after_update_to(value) for value in (8.0, 0.0, 0.0)]
    assert seen == pytest.approx([8.0, 8 * 2 / 11, 8 * 2 / 11 * 3 / 12])
    for _ in range(20):
        before = after_update_to(0.0)
    assert after_update_to(0.0) == pytest.approx(before / 2)
