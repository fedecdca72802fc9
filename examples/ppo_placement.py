"""One file to start research from: a policy learns by PPO to place op graphs.

It uses numpy, torch and Placewalk's environment, and nothing of Placewalk's agents. An episode visits the ops
of a graph and chooses a device for each. An observation names the graph and the op, and has a row of features
for each device (`envs/placement/observation/features.py`). The return is minus the step time in steps of one
device. The policy learns from 26 graphs; the six others of the family judge it. In 30 seconds of one core,
seeds 0 and 1 reach 0.647 and 0.634 of one device's step; list scheduling 0.704, HEFT 0.684.

What to change first:
- `Policy` sees an op alone; a graph encoder over `problem.graph.edges` in place of `of_op` sees more.
- `advantages` compares an episode with the others at the same op of the same graph.
- `op_features`; the flags (`--help`); the arguments of `PlacementVecEnv`, such as `mdp="improve"`.

It prints the ratio of unseen graphs every ten updates; `runs/examples/ppo_placement` gets the learning curve.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.utils.tensorboard import SummaryWriter

import envs
from envs.placement.generator import Rounds
from envs.placement.observation.features import COLUMN, N_DEVICE_FEATURES
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from graphs.dataset import load_family

N_UNSEEN = 6
Seen = dict[str, Tensor]
Flags = argparse.Namespace


def parse_flags() -> Flags:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    flags = {"family": "cifar10", "cluster": "4xv100", "order": "topo", "seed": 0, "timesteps": 300_000}
    flags |= {"n-envs": 128, "n-steps": 64, "epochs": 4, "batch-size": 2048, "hidden": 32, "clip": 0.2}
    flags |= {"learning-rate": 3e-3, "gae-lambda": 1.0, "entropy": 0.002}
    for name, default in flags.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"by default {default}")
    parser.add_argument("--out", type=Path, default=Path("runs/examples/ppo_placement"))
    return parser.parse_args()


def op_features(problem: Problem) -> np.ndarray:
    """Describes each op in units of its graph, float32 (n_ops, n_features)."""
    graph, seconds = problem.graph, problem.op_seconds.mean(axis=1)
    output_bytes = np.bincount(graph.tensor_producer, graph.tensor_bytes, graph.n_ops)
    amounts = seconds / seconds.mean(), output_bytes / output_bytes.mean()
    degrees = np.diff(graph.predecessors.ptr), np.diff(graph.successors.ptr)
    columns = *map(np.log1p, (*amounts, *degrees)), np.cumsum(seconds) / seconds.sum()
    return np.stack(columns, axis=1).astype(np.float32)


class Policy(nn.Module):
    """Scores every device of an op with the same weights, so it places any graph on any number of devices."""

    def __init__(self, problems: list[Problem], hidden: int) -> None:
        super().__init__()
        self.ops = torch.from_numpy(np.concatenate([op_features(problem) for problem in problems]))
        self.first_op = torch.tensor(np.cumsum([0, *(problem.graph.n_ops for problem in problems)]))
        self.of_op = nn.Linear(self.ops.shape[1], hidden)
        self.of_device = nn.Linear(N_DEVICE_FEATURES, hidden)
        self.own, self.of_all = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.score, self.value = nn.Linear(hidden, 1), nn.Linear(hidden, 1)

    def forward(self, seen: Seen) -> tuple[Categorical, Tensor]:
        """Returns the distribution over the devices that the mask allows, and the values, (n,)."""
        op = self.ops[self.first_op[seen["problem"][:, 0]] + seen["op"][:, 0]]
        devices = seen["devices"].unflatten(1, (-1, N_DEVICE_FEATURES))
        x = torch.relu(self.of_device(devices) + self.of_op(op)[:, None])
        x = torch.relu(self.own(x) + self.of_all(x.mean(1))[:, None])
        scores = self.score(x)[..., 0].masked_fill(seen["mask"] == 0, -1e9)
        return Categorical(logits=scores), self.value(x.mean(1))[:, 0]


def finishes_first(seen: Seen) -> Tensor:
    """Takes the device on which the op at hand finishes first, as list scheduling does, int64 (n,)."""
    devices = seen["devices"].unflatten(1, (-1, N_DEVICE_FEATURES))
    return devices[..., COLUMN.finish_over_earliest].masked_fill(seen["mask"] == 0, 1e9).argmin(1)


def tensors(arrays: dict[str, np.ndarray]) -> Seen:
    """Wraps arrays."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@torch.no_grad()
def place_unseen(problems: list[Problem], choose: Callable[[Seen], Tensor], orders: Sequence[str]) -> float:
    """Returns the step time over one device in the better order, geometric mean over the unseen graphs."""
    best = np.full(N_UNSEEN, np.inf)
    for order in orders:
        rounds = Rounds(only=range(N_UNSEEN))
        env = PlacementVecEnv(problems, N_UNSEEN, generator=rounds, orders=[order])
        seen, waits = env.reset(), np.ones(env.num_envs, dtype=bool)
        while waits.any():
            seen, _, done, infos = env.step(choose(tensors(seen)).numpy())
            for result in (infos[place]["result"] for place in np.flatnonzero(done & waits)):
                ratio = result.ratio_to_single if result.fits else np.inf
                best[result.problem] = min(best[result.problem], ratio)
            waits &= ~done
    return float(np.exp(np.log(best).mean()))


@torch.no_grad()
def collect(env: PlacementVecEnv, policy: Policy, seen: Seen, flags: Flags) -> tuple[Seen, Seen]:
    """Decides `n_steps` times in every episode; returns columns (n_steps, n_envs), and what is seen then."""
    steps = []
    for _ in range(flags.n_steps):
        distribution, value = policy(seen)
        action = distribution.sample()
        after, reward, done, _ = env.step(action.numpy())
        decided = {"action": action, "log_prob": distribution.log_prob(action), "value": value}
        steps.append(seen | decided | tensors({"reward": reward, "done": done}))
        seen = tensors(after)
    rollout = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}
    rollout["advantage"], rollout["return"] = advantages(rollout, policy(seen)[1], flags.gae_lambda)
    return rollout, seen


def advantages(rollout: Seen, value_after: Tensor, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """Computes advantages, in units of each graph's spread, and returns to go, (n_steps, n_envs) each.

    It is generalised advantage estimation without discount, less the mean of all decisions on the same op of
    the same graph: how far the value is off depends on the op more than on what was decided before.
    """
    reward, value, goes_on = rollout["reward"], rollout["value"], ~rollout["done"]
    gae, gae_after = torch.zeros_like(reward), torch.zeros_like(value_after)
    for step in reversed(range(len(reward))):
        gae_after = reward[step] - value[step] + goes_on[step] * (value_after + gae_lambda * gae_after)
        gae[step], value_after = gae_after, value[step]
    problem, op = rollout["problem"].flatten(), rollout["op"].flatten()
    _, same_op = torch.unique(problem * (op.max() + 1) + op, return_inverse=True)
    centred = gae.flatten() - mean_of_group(gae.flatten(), same_op)
    spread = mean_of_group(centred**2, problem).sqrt() + 0.1 * centred.std() + 1e-8
    return (centred / spread).view_as(gae), gae + value


def mean_of_group(values: Tensor, group: Tensor) -> Tensor:
    """Returns for each value the mean of its group, (n,)."""
    return (torch.bincount(group, values) / torch.bincount(group).clamp(min=1))[group].float()


def update(policy: Policy, optimizer: torch.optim.Optimizer, rollout: Seen, flags: Flags) -> None:
    """Takes the steps of PPO's clipped objective over a rollout."""
    rows = {name: entries.flatten(0, 1) for name, entries in rollout.items()}
    for _ in range(flags.epochs):
        for chosen in torch.randperm(len(rows["action"])).split(flags.batch_size):
            batch = {name: entries[chosen] for name, entries in rows.items()}
            distribution, value = policy(batch)
            ratio = (distribution.log_prob(batch["action"]) - batch["log_prob"]).exp()
            clipped = ratio.clamp(1 - flags.clip, 1 + flags.clip)
            gain = torch.min(ratio * batch["advantage"], clipped * batch["advantage"]).mean()
            value_loss = (value - batch["return"]).square().mean()
            optimizer.zero_grad()
            (0.5 * value_loss - gain - flags.entropy * distribution.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


def main() -> None:
    """Trains, places the unseen graphs and draws the learning curve."""
    flags, began_s = parse_flags(), time.process_time()
    torch.set_num_threads(1)  # as fast for these sizes, and does not wait for a busy core
    writer, _ = SummaryWriter(str(flags.out)), torch.manual_seed(flags.seed)
    problems = [Problem(graph, envs.get_cluster(flags.cluster)) for graph in load_family(flags.family)]
    rounds, orders = Rounds(repeats=16, only=range(N_UNSEEN, len(problems))), (flags.order,)
    env = PlacementVecEnv(problems, flags.n_envs, generator=rounds, orders=orders, seed=flags.seed)
    policy = Policy(problems, flags.hidden)
    optimizer = torch.optim.Adam(policy.parameters(), lr=flags.learning_rate, eps=1e-5)
    n_updates, curve = max(flags.timesteps // (flags.n_steps * flags.n_envs), 1), []
    seen, lists = tensors(env.reset()), place_unseen(problems, finishes_first, ("topo", "b-level"))
    for number in range(n_updates + 1):
        if number % 10 == 0 or number == n_updates:
            ratio = place_unseen(problems, lambda seen: policy(seen)[0].sample(), orders)
            spent_s, decisions = time.process_time() - began_s, number * flags.n_steps * flags.n_envs
            curve.append((decisions, ratio))
            print(f"{decisions:>10,} decisions, {spent_s:4.0f} s: {ratio:.3f}", flush=True)
            writer.add_scalar("eval/ratio_to_single", ratio, decisions)
        if number < n_updates:
            optimizer.param_groups[0]["lr"] = flags.learning_rate * (1 - number / n_updates)
            rollout, seen = collect(env, policy, seen, flags)
            update(policy, optimizer, rollout, flags)

    greedy = place_unseen(problems, lambda seen: policy(seen)[0].logits.argmax(1), orders)
    print(f"likeliest devices: {greedy:.3f} of one device, {greedy / lists:.3f} of list scheduling")
    plt.plot(*zip(*curve, strict=True), label="policy, sampled")
    plt.axhline(lists, color="0.5", linestyle="--", label="list scheduling")
    plt.gca().set(xlabel="decisions", ylabel="step time over one device", title=f"{N_UNSEEN} unseen graphs")
    plt.legend()
    plt.savefig(flags.out / "ppo_placement.svg")
    print(f"saved {flags.out / 'ppo_placement.svg'}")


if __name__ == "__main__":
    main()
