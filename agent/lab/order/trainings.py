"""Trainings in several orders: `python -m agent.lab.order.trainings shared|credit OUT.csv [DECISIONS]`.

`shared`: one policy for all orders, with equal and with all features. `credit`: a policy for each order and
each way in which it is told what a decision was worth. Rows are as those of `orders.csv.gz`.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent.placers.base import PLACERS, Budget
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from agent.training.clock import between
from agent.training.imitation.demonstrations import Demonstration, own_placements, regrets
from agent.training.imitation.learner import ImitationLearner
from agent.training.imitation.phases import PASSES_PER_ROUND
from agent.training.imitation.trajectories import replay_demonstrations
from agent.training.problems import split_graphs
from agent.training.reinforcement.ppo import PlacementPPO
from agent.training.reinforcement.rollout_buffer import PerGraphRolloutBuffer
from agent.training.validation import greedy_ratios
from envs.cluster.presets import get_cluster
from envs.placement.generator import Rounds
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from envs.simulator.simulate import step_times_s
from graphs.dataset import load_graphs
from graphs.op_graph import OpGraph
from graphs.orders import ORDERS
from graphs.system.array_types import FloatArray
from graphs.system.running_time import running_cpu_s

FAMILIES = ("cifar10", "ptb", "nmt", "gpt", "vit", "moe")
CLUSTER = "4xv100"
TEN = tuple(name for name in ORDERS if ":" not in name)
FOUR = ("topo", "reversed-topo", "bfs", "random")
SEEDS = range(3)
N_HELD_OUT = 7
MOST_OPS, MOST_UNITS = 1_300, 400
"""Ops of the graphs that `shared` learns from, and units of the graphs of `credit`."""
SEARCH, IMITATION_ROUNDS, DAGGER_ROUNDS = 3_000, 20, 20
RATE, FINAL_RATE, NORM = 1e-3, 5e-5, 0.5
N_ENVS, N_STEPS = 32, 400
SHAPED = ("end", "prefix", "list schedule")
COLUMNS = ["arm", "family", "order", "seed", "graph", "ratio_to_single", "decisions", "cpu_s"]


class ShapedBuffer(PerGraphRolloutBuffer):
    """Moves rewards within an episode; its return stays, but for a constant of the problem.

    `end`: all reward comes with the last decision. `prefix`: as the environment gives it, by the growth of
    the step of what is placed. `list schedule`: by the growth of the step where undecided units are on their
    devices in a list schedule. The last two are differences of potentials (Ng, Harada and Russell 1999), so
    they keep the optimum.

    Args:
        rewards: one of `SHAPED`.
        problems: of the environment.
    """

    def __init__(self, *positional: Any, rewards: str, problems: Sequence[Problem], **named: Any) -> None:
        super().__init__(*positional, **named)
        self._rewards, self._problems = rewards, problems
        self._bases = [list_schedule(problem) for problem in problems] if rewards == SHAPED[2] else []
        self._returned = np.zeros(self.n_envs)
        self._potential = np.zeros(self.n_envs)
        self._placed: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)] * self.n_envs

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """Replaces the rewards first."""
        if self._rewards != "prefix":
            shape = self.rewards.shape
            starts = self.episode_starts > 0
            ends = np.concatenate([starts[1:], dones[None]])
            problem, op = (self.observations[name].reshape(shape) for name in ("problem", "op"))
            action = self.actions.reshape(shape).astype(np.int64)
            for place in range(self.n_envs):
                firsts = np.flatnonzero(starts[:, place])
                for rows in np.split(np.arange(shape[0]), firsts[firsts > 0]):
                    own = rows, np.full(len(rows), place)
                    told = int(problem[own][0]), op[own], action[own]
                    self._shape(place, own, *told, begins=starts[own][0], done=ends[own][-1])
        super().compute_returns_and_advantage(last_values, dones)

    def _shape(
        self, place: int, own: Any, problem: int, op: Any, action: Any, *, begins: bool, done: bool
    ) -> None:
        """Replaces the rewards of decisions of one episode in a row."""
        if begins:
            self._returned[place] = 0.0
        self._returned[place] += self.rewards[own].sum()
        shaped = np.zeros(len(op))
        if self._bases:
            shaped = self._differences(place, problem, op, action, begins)
        if done:
            last = self._returned[place] - self._potential[place] if self._bases else self._returned[place]
            shaped[-1] += last
        self.rewards[own] = shaped

    def _differences(self, place: int, index: int, op: Any, action: Any, begins: bool) -> FloatArray:
        """Computes the growth of the potential with each decision; keeps the last potential."""
        problem = self._problems[index]
        if begins:
            self._placed[place] = self._bases[index].copy()
            self._potential[place] = -step_times_s(problem, self._placed[place][None])[0] / problem.scale_s
        devices = np.empty((len(op), problem.graph.n_ops), dtype=np.int64)
        placed, units = self._placed[place], problem.graph.units
        for row, (each, device) in enumerate(zip(op, action, strict=True)):
            unit = problem.graph.unit_of[each]
            placed[units.items[units.ptr[unit] : units.ptr[unit + 1]]] = device
            devices[row] = placed
        potential = -step_times_s(problem, devices) / problem.scale_s
        growth: FloatArray = np.diff(potential, prepend=self._potential[place])
        self._potential[place] = potential[-1]
        return growth


def list_schedule(problem: Problem) -> NDArray[np.int64]:
    """Returns the devices of HEFT's schedule, (n_ops,)."""
    found = PLACERS["heft"].place(problem, Budget(evaluations=8), np.random.default_rng(0))
    return np.asarray(found.placement.device_of, dtype=np.int64)


class Learner:
    """A policy and its optimizer.

    Args:
        orders: of its decisions, with equal shares.
        features: name of a feature set.
        encodes: whether the encoder learns by reinforcement, too.
        rate: first learning rate of reinforcement.
        n_steps, batch_size: decisions of an episode between two updates, and of a minibatch.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        orders: Sequence[str],
        features: str,
        seed: int,
        *,
        encodes: bool = False,
        gae_lambda: float = 1.0,
        rate: float = RATE,
        n_steps: int = N_STEPS,
        batch_size: int = 1024,
    ) -> None:
        self.problems, self.orders, self.seed = list(problems), orders, seed
        self.decisions = 0
        self.env = PlacementVecEnv(problems, N_ENVS, generator=Rounds(repeats=8), seed=seed, orders=orders)

        def make_policy() -> Policy:
            return Policy(PlacementNetwork(current_shape("sage", 64, 4, features)))

        self.ppo = PlacementPPO(
            "PlacementPolicy",
            self.env,
            learning_rate=lambda left: between(rate, FINAL_RATE, 1 - left),
            n_steps=n_steps,
            batch_size=batch_size,
            gae_lambda=gae_lambda,
            policy_kwargs={"make_policy": make_policy, "encodes": encodes},
            seed=seed,
        )
        self.policy: Policy = self.ppo.policy.placer

    def imitate(
        self, placed: Callable[[str], Sequence[Demonstration]], number: int, of: int, passes: int, rate: float
    ) -> None:
        """Makes a round: each problem in one of the orders, which take turns."""
        optimizer = self.ppo.policy.optimizer
        for group in optimizer.param_groups:
            group["lr"] = between(rate, FINAL_RATE, number / of)
        trajectories, seed = [], (self.seed, number)
        for at, order in enumerate(self.orders):
            own = [each for each in placed(order) if (each.problem + number) % len(self.orders) == at]
            trajectories += replay_demonstrations(
                self.problems, own, orders=(order,), mdp_config=self.policy.mdp_config, seed=seed
            )
        learner = ImitationLearner(trajectories, seed)
        for each in range(passes):
            self.decisions += learner.epoch(each, self.policy, optimizer, max_grad_norm=NORM)[1]

    def correct(self, number: int, of: int, rate: float = 2 * RATE) -> None:
        """Makes a round of on-policy imitation of the costs of single moves."""
        rng = np.random.default_rng([self.seed, 1, number])

        def placed(order: str) -> list[Demonstration]:
            at = self.orders.index(order)
            share = [i for i in range(len(self.problems)) if (i + number) % len(self.orders) == at]
            found = own_placements(self.policy, [self.problems[i] for i in share], order=order, rng=rng)
            return [Demonstration(share[each.problem], each.device_of, each.regret) for each in found]

        self.imitate(placed, number, of, PASSES_PER_ROUND, rate)

    def reinforce(self, decisions: int, rewards: str = "prefix") -> None:
        """Learns by PPO."""
        ppo = self.ppo
        if rewards != "prefix":
            ppo.rollout_buffer = ShapedBuffer(
                ppo.n_steps,
                ppo.observation_space,
                ppo.action_space,
                ppo.device,
                gamma=ppo.gamma,
                gae_lambda=ppo.gae_lambda,
                n_envs=ppo.n_envs,
                share=0.3,
                rewards=rewards,
                problems=self.problems,
            )
        ppo.learn(decisions, log_interval=None)
        self.decisions += ppo.num_timesteps


def problems_of(graphs: Sequence[OpGraph]) -> list[Problem]:
    """Makes problems on the cluster."""
    return [Problem(graph, get_cluster(CLUSTER)) for graph in graphs]


def shared(decisions: int) -> Iterator[tuple[str, int, Callable[[], tuple[Learner, Sequence[str]]]]]:
    """Yields arm, seed and training of one policy for ten orders."""
    problems = problems_of([graph for graph in SPLIT.train if graph.n_ops <= MOST_OPS])
    demonstrations: list[Demonstration] = []

    def train(features: str, seed: int) -> tuple[Learner, Sequence[str]]:
        if not demonstrations:
            rng = np.random.default_rng(0)
            for at, problem in enumerate(problems):
                found = PLACERS["annealing"].place(problem, Budget(SEARCH), rng).placement.device_of
                demonstrations.append(Demonstration(at, found, regrets(problem, found)))
        learner = Learner(problems, TEN, features, seed, rate=3e-4, n_steps=768, batch_size=2048)
        for number in range(IMITATION_ROUNDS):
            learner.imitate(lambda _: demonstrations, number, IMITATION_ROUNDS, 1, 2 * RATE)
        for number in range(DAGGER_ROUNDS):
            learner.correct(number, DAGGER_ROUNDS, RATE)
        learner.reinforce(decisions)
        return learner, TEN

    for seed, features in itertools.product(SEEDS, ("consumers", "rollout")):
        yield f"one set, {features}", seed, lambda f=features, s=seed: train(f, s)  # type: ignore[misc]


def credit(decisions: int) -> Iterator[tuple[str, int, Callable[[], tuple[Learner, Sequence[str]]]]]:
    """Yields arm, seed and training of each way of credit and each order."""
    problems = problems_of([graph for graph in SPLIT.train if len(graph.units) <= MOST_UNITS])

    def train(rewards: str, gae_lambda: float, order: str, seed: int) -> tuple[Learner, Sequence[str]]:
        learner = Learner(problems, (order,), "consumers", seed, encodes=True, gae_lambda=gae_lambda)
        if rewards == "moves":
            n = round(decisions / PASSES_PER_ROUND / sum(len(p.graph.units) for p in problems))
            for number in range(n):
                learner.correct(number, n)
        else:
            learner.reinforce(decisions, rewards)
        return learner, (order,)

    arms = [*itertools.product(SHAPED[:2], (1.0,)), *itertools.product(SHAPED, (0.95,)), ("moves", 1.0)]
    for seed, (rewards, gae), order in itertools.product(SEEDS, arms, FOUR):
        arm = rewards if rewards == "moves" else f"{rewards}, {gae:g}"
        yield arm, seed, lambda r=rewards, g=gae, o=order, s=seed: train(r, g, o, s)  # type: ignore[misc]


SPLIT = split_graphs(load_graphs(FAMILIES), holdout=0.5, validation=0.07)


def held_out(most_units: int) -> list[Problem]:
    """Takes as many held-out graphs of each family."""
    graphs = [graph for graph in SPLIT.held_out if len(graph.units) <= most_units]
    of_family = {name: [graph for graph in graphs if graph.family == name] for name in FAMILIES}
    return problems_of([graph for own in of_family.values() for graph in own[:N_HELD_OUT]])


def main(which: str, out: Path, decisions: int, most: int) -> None:
    """Writes the rows of trainings."""
    torch.set_num_threads(1)
    judged = held_out({"shared": 10_000, "credit": MOST_UNITS}[which])
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        trainings = {"shared": shared, "credit": credit}[which](decisions)
        for arm, seed, train in itertools.islice(trainings, most):
            torch.manual_seed(seed)
            began_s = running_cpu_s()
            learner, orders = train()
            cpu_s = running_cpu_s() - began_s
            ppo, line = learner.ppo, []
            for order in orders:
                ratios = greedy_ratios(learner.policy, judged, order)
                line.append(f"{order} {np.exp(np.mean(np.log(ratios))):.3f}")
                for problem, found in zip(judged, ratios, strict=True):
                    where = arm, problem.graph.family, order, seed, f"{problem.graph.name} on {CLUSTER}"
                    writer.writerow([*where, f"{found:.5f}", learner.decisions, f"{cpu_s:.1f}"])
            file.flush()
            told = f"gamma {ppo.gamma:g}, lambda {ppo.gae_lambda:g}, {learner.decisions:,} decisions"
            print(arm, seed, told, f"{cpu_s:.1f} s", *line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1_000)
