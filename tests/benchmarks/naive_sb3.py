"""Training as one would first set it up with stable-baselines3: the whole graph is the observation.

Plain, but not slow on purpose. It learns from the same node features at the same width, with the same epochs
per decision and the same threads; its simulator is ours, called once per episode; it looks ahead at nothing;
its two layers of GraphSAGE are half of ours; the graphs of a batch are encoded as one disjoint union. What it
lacks is the design: no embedding is used twice, and environments are stepped one by one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from agent.policy.node_features import contract, node_features
from agent.training.config import TrainConfig
from envs.problem import Problem
from envs.simulator.simulate import step_time_s

with warnings.catch_warnings():
    # It warns once a process of its own use of TorchScript.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import SAGEConv

N_ENVS = 8
N_STEPS, BATCH_SIZE = 64, 256

Observation = dict[str, NDArray[Any]]


class NaivePlacementEnv(gym.Env[Observation, np.int64]):
    """Places the ops of one graph in program order; the reward comes at the end of the episode.

    Args:
        problem: what is placed.
        max_nodes, max_edges: what observations are padded to; a node of padding has no features, an edge of
            padding goes from node -1 to node -1.
    """

    def __init__(self, problem: Problem, *, max_nodes: int, max_edges: int) -> None:
        self.problem = problem
        graph = problem.graph
        self._walk = np.flatnonzero(graph.is_compute)
        features = node_features(problem)[graph.is_compute]
        _, edges = contract(graph)
        self._nodes = np.zeros((max_nodes, features.shape[1]), dtype=np.float32)
        self._nodes[: len(features)] = features
        self._edges = np.full((2, max_edges), -1, dtype=np.int64)
        self._edges[:, : len(edges)] = edges.T
        unbounded = {"low": -np.inf, "high": np.inf}
        self.action_space = spaces.Discrete(problem.n_devices)
        self.observation_space = spaces.Dict(
            {
                "nodes": spaces.Box(**unbounded, shape=self._nodes.shape, dtype=np.float32),
                "edges": spaces.Box(-1, max_nodes - 1, self._edges.shape, np.int64),
                "current": spaces.Box(0, max_nodes - 1, (1,), np.int64),
                "placement": spaces.Box(-1, problem.n_devices - 1, (max_nodes,), np.int64),
                "devices": spaces.Box(**unbounded, shape=(problem.n_devices, 3), dtype=np.float32),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin with nothing placed."""
        super().reset(seed=seed)
        self._device_of = np.full(self.problem.graph.n_ops, -1, dtype=np.int64)
        self._load = np.zeros(self.problem.n_devices)
        self._busy = np.zeros(self.problem.n_devices)
        self._at = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Put the op at hand, and what is colocated with it, on a device."""
        graph, device = self.problem.graph, int(action)
        unit = graph.unit_of[self._walk[self._at]]
        members = graph.units.row(unit)
        self._device_of[members] = device
        self._load[device] += self.problem.footprint_bytes[unit]
        self._busy[device] += self.problem.op_seconds[members, device].sum()
        while self._at < len(self._walk) and self._device_of[self._walk[self._at]] >= 0:
            self._at += 1
        over = self._at == len(self._walk)
        reward = -step_time_s(self.problem, self._device_of) / self.problem.scale_s if over else 0.0
        return self._observation(), reward, over, False, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Devices with memory for the op at hand; all of them where none has it."""
        op = self._walk[min(self._at, len(self._walk) - 1)]
        needed = self.problem.footprint_bytes[self.problem.graph.unit_of[op]]
        has_memory = self._load + needed <= self.problem.cluster.memory_bytes
        return has_memory if has_memory.any() else ~has_memory

    def _observation(self) -> Observation:
        placement = np.full(len(self._nodes), -1, dtype=np.int64)
        placement[: len(self._walk)] = self._device_of[self._walk]
        scale = np.stack([self.problem.cluster.memory_bytes, np.full_like(self._busy, self.problem.scale_s)])
        used = np.stack([self._load, self._busy]) / scale
        speed = self.problem.single_device_s / self.problem.scale_s
        return {
            "nodes": self._nodes,
            "edges": self._edges,
            "current": np.array([min(self._at, len(self._walk) - 1)]),
            "placement": placement,
            "devices": np.stack([*used, speed], axis=1).astype(np.float32),
        }


class GraphExtractor(BaseFeaturesExtractor):
    """Two layers of GraphSAGE over the graph of every observation, at every step.

    The features are the embedding of the op at hand, the mean embedding, and the devices' numbers.
    """

    def __init__(self, observation_space: spaces.Dict, hidden: int) -> None:
        boxes = observation_space.spaces
        self.n_devices = boxes["devices"].shape[0]
        super().__init__(observation_space, 2 * hidden + int(np.prod(boxes["devices"].shape)))
        # Beside its own features a node shows where it is placed, if it is, and whether its turn has come.
        self.first = SAGEConv(boxes["nodes"].shape[1] + self.n_devices + 2, hidden)
        self.second = SAGEConv(hidden, hidden)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Features (n, features_dim) of n observations."""
        n, n_nodes = obs["placement"].shape
        first = torch.arange(n, device=obs["nodes"].device) * n_nodes
        current = obs["current"].long().squeeze(1)
        placed = nn.functional.one_hot(obs["placement"].long() + 1, self.n_devices + 1)
        is_current = nn.functional.one_hot(current, n_nodes)[:, :, None]
        state = torch.cat([obs["nodes"], placed, is_current], dim=2).flatten(0, 1)
        edges = obs["edges"].long()
        there = edges[:, 0] >= 0
        union = (edges + first[:, None, None]).transpose(0, 1)[:, there]
        state = self.first(state, union).relu()
        state = self.second(state, union).relu()
        real = obs["nodes"].any(2, keepdim=True)
        mean = (state.view(n, n_nodes, -1) * real).sum(1) / real.sum(1)
        return torch.cat([state[first + current], mean, obs["devices"].flatten(1)], dim=1)


def make_naive_ppo(problems: Sequence[Problem], config: TrainConfig) -> MaskablePPO:
    """PPO over `N_ENVS` environments, which take the problems in turn."""
    max_nodes = max(int(problem.graph.is_compute.sum()) for problem in problems)
    max_edges = max(len(contract(problem.graph)[1]) for problem in problems)

    def make(index: int) -> NaivePlacementEnv:
        return NaivePlacementEnv(problems[index % len(problems)], max_nodes=max_nodes, max_edges=max_edges)

    ppo = MaskablePPO(
        "MultiInputPolicy",
        DummyVecEnv([partial(make, index) for index in range(N_ENVS)]),
        learning_rate=config.learning_rate,
        n_steps=N_STEPS,
        batch_size=BATCH_SIZE,
        n_epochs=config.epochs,
        gamma=1.0,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip,
        ent_coef=config.entropy,
        vf_coef=config.value_weight,
        max_grad_norm=config.max_grad_norm,
        policy_kwargs={
            "features_extractor_class": GraphExtractor,
            "features_extractor_kwargs": {"hidden": config.hidden},
            "net_arch": [config.hidden, config.hidden],
        },
        seed=0,
        device="cpu",
    )
    ppo.set_logger(Logger(folder=None, output_formats=[]))
    return ppo
