"""Trains heads of the order by REINFORCE: `... train SECONDS OUT`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agent.lab.order_chosen.walk import K, OrderHead, Record, Walker, new_order_head
from agent.placing.trial_runner import open_policy
from agent.policy.compiled.policy import CompiledPolicy
from agent.policy.network import PlacementNetwork
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.system.running_time import running_cpu_s

FAMILIES = ("cifar10", "ptb", "nmt", "gpt", "vit", "moe")
CLUSTERS = ("4xv100", "4xa100-pcie")
MOST_UNITS, PER_FAMILY, GROUP, SEEDS = 400, 5, 8, 3
RATE_OF_ORDER, RATE_OF_DEVICES, PER_RANK = 1e-3, 1e-4, -1.0
TUNED = (
    "actor.1.weight",
    "actor.1.bias",
    "actor.3.weight",
    "actor.3.bias",
    "of_pool.weight",
    "of_device.weight",
)


def training_problems() -> list[Problem]:
    """Pairs the smallest even draws of each family with both clusters; the odd draws are held out."""
    graphs = []
    for family in FAMILIES:
        draws = sorted(load_family(family)[::2], key=lambda graph: graph.n_ops)
        graphs += [graph for graph in draws if len(graph.units) <= MOST_UNITS][:PER_FAMILY]
    return [Problem(graph, get_cluster(name)) for graph in graphs for name in CLUSTERS]


def head_of(parameters: dict[str, Tensor]) -> OrderHead:
    """Copies the head of the order into arrays."""
    names = ("weight", "bias", "out", "per_rank")
    return OrderHead(*(parameters[name].detach().numpy().copy() for name in names))


def log_chances(
    parameters: dict[str, Tensor],
    network: PlacementNetwork,
    walker: Walker,
    record: Record,
    n: int,
    *,
    both: bool,
) -> Tensor:
    """Computes the log chance of each taken action, (GROUP * n,)."""
    inputs = torch.from_numpy(record.inputs[:, :n]).flatten(0, 1)
    count = torch.from_numpy(record.n_candidates[:, :n]).flatten()
    taken = torch.from_numpy(record.taken[:, :n]).flatten()
    rank = torch.arange(K)
    hidden = nn.functional.silu(inputs @ parameters["weight"] + parameters["bias"])
    scores = hidden @ parameters["out"] + parameters["per_rank"] * rank
    scores = scores.masked_fill(rank >= count[:, None], -1e9)
    found = scores.log_softmax(1).gather(1, taken[:, None]).squeeze(1)
    if not both:
        return found
    op = record.op[:, :n].ravel()
    hidden_size = walker.head.out_weight.shape[0]
    actor = torch.from_numpy(walker.head.contexts[walker.head.row_of[op]][:, :hidden_size].copy())
    context = torch.cat([actor, torch.zeros_like(actor)], dim=1)
    mask = torch.from_numpy(record.mask[:, :n]).flatten(0, 1)
    logits, _ = network(context, torch.from_numpy(record.features[:, :n]).flatten(0, 1), mask)
    device = torch.from_numpy(record.device[:, :n]).flatten()
    logits = logits.masked_fill(~mask, -1e9)
    return found + logits.log_softmax(1).gather(1, device[:, None]).squeeze(1)


def train(seed: int, seconds: float, *, both: bool) -> dict[str, Any]:
    """Trains the head of the order, and of the devices too, for some processor seconds."""
    stored = open_policy("pretrained")
    base = stored.actor.compiled()
    network = PlacementNetwork(base.shape)
    network.load_state_dict({name: torch.tensor(value) for name, value in base.weights.items()}, strict=False)
    for name, value in network.named_parameters():
        value.requires_grad_(name in TUNED)
    problems, rng = training_problems(), np.random.default_rng(seed)
    order = rng.permutation(len(problems))
    walkers: dict[int, Walker] = {}
    first = new_order_head(Walker(base, problems[0], 1).n_inputs, seed, PER_RANK)
    parameters = {name: torch.tensor(getattr(first, name), requires_grad=True) for name in first._fields}
    groups = [{"params": list(parameters.values()), "lr": RATE_OF_ORDER}]
    if both:
        tuned = [value for name, value in network.named_parameters() if name in TUNED]
        groups.append({"params": tuned, "lr": RATE_OF_DEVICES})
    optimizer = torch.optim.Adam(groups)
    began_s, step, decisions, ratios = running_cpu_s(), 0, 0, []
    record: Record | None = None
    policy = base
    while running_cpu_s() - began_s < seconds:
        at = int(order[step % len(order)])
        if at not in walkers:
            walkers[at] = Walker(base, problems[at], GROUP, n_rows=1 if record else MOST_UNITS)
            record = record or walkers[at].record
            walkers[at].record = record
        walker = walkers[at]
        if both:
            walker.head = policy.head_over(walker.contexts)
        found = walker.run(head_of(parameters), rng, incremental=False, draws_devices=both)
        n = int(walker.decisions().max())
        decisions += int(walker.decisions().sum())
        logs = np.log(np.minimum(found, 10 * walker.problem.scale_s) / walker.problem.scale_s)
        ratios.append(float(logs.mean()))
        advantage = -(logs - logs.mean()) * GROUP / (GROUP - 1)
        advantage /= advantage.std() + 1e-3
        chances = log_chances(parameters, network, walker, record, n, both=both)
        weight = torch.from_numpy(np.repeat(advantage, n).astype(np.float32))
        loss = -(weight * chances).sum() / GROUP / n**0.5
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([each for group in groups for each in group["params"]], 1.0)
        optimizer.step()
        if both:
            weights = {**base.weights}
            weights |= {
                name: value.detach().numpy().copy()
                for name, value in network.named_parameters()
                if name in TUNED
            }
            policy = CompiledPolicy(base.shape, weights, base.mdp_config)
        step += 1
    k = len(problems)
    print(seed, both, step, decisions, np.mean(ratios[:k]), np.mean(ratios[-k:]), flush=True)
    tuned = {name: policy.weights[name] for name in TUNED}
    totals = {"steps": step, "decisions": decisions, "cpu_s": running_cpu_s() - began_s}
    return {**head_of(parameters)._asdict(), **tuned, **totals}


if __name__ == "__main__":
    for seed in range(SEEDS):
        for both in (False, True):
            found = train(seed, float(sys.argv[1]), both=both)
            np.savez(Path(sys.argv[2]) / f"{'both' if both else 'order'}-{seed}.npz", **found)
