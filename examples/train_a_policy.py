"""Trains a policy with Stable-Baselines3, and places an unseen graph with it before and after.

`PlacementVecEnv` is a `VecEnv` and `PlacementPPO` a `MaskablePPO`, so `learn`, loggers and callbacks are
those of Stable-Baselines3. The policy learns from 26 graphs; the callback places six others of the family.

It takes a minute of two cores, and compiles for another one when it first runs. It prints SB3's tables
and the steps of an unseen graph. It saves the learning curve as
`runs/examples/train_a_policy/train_a_policy.svg`, and beside it both policies for `evaluate.py --policy`.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from matplotlib import pyplot as plt
from stable_baselines3.common.logger import configure

import envs
from agent import place
from agent.learn.evaluation import CompareWithSearch
from agent.learn.ppo import PlacementPPO
from envs.figures import PAPER, draw_timeline
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from graphs.dataset import load_family

N_UNSEEN = 6


def main() -> None:
    """Trains, places and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--timesteps", type=int, default=1_500_000, help="decisions to learn from")
    parser.add_argument("--out", type=Path, default=Path("runs/examples/train_a_policy"))
    flags = parser.parse_args()

    cluster = envs.get_cluster("4xv100")
    problems = [Problem(graph, cluster) for graph in load_family("cifar10")]
    env = PlacementVecEnv(problems[N_UNSEEN:], n_envs=64)
    model = PlacementPPO("PlacementPolicy", env, n_steps=512, device="cpu", seed=0)
    model.set_logger(configure(str(flags.out), ["stdout", "csv", "tensorboard"]))
    plans = {}
    for when in ("before", "after"):
        if when == "after":
            model.learn(flags.timesteps, callback=[CompareWithSearch(problems[:N_UNSEEN])])
        model.save(flags.out / when)
        plans[when] = place(problems[0].graph, cluster=cluster, placer="policy", policy=flags.out / when)
    with (flags.out / "progress.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["compare/to_annealing"]]
    figure, axes = plt.subplots(3, figsize=(10, 8), layout="constrained")
    decisions = [float(row["time/updates"]) * env.num_envs * model.n_steps for row in rows]
    axes[0].plot(decisions, [float(row["compare/to_annealing"]) for row in rows], marker=".")
    axes[0].set(xlabel="decisions", ylabel="step time over annealing's", title=f"{N_UNSEEN} unseen graphs")
    until_s = max(plan.step_time.total_s for plan in plans.values())
    for axis, (when, plan) in zip(axes[1:], plans.items(), strict=True):
        draw_timeline(axis, plan.objective, plan.placement, plan.step_time, until_s, PAPER)
        axis.set_title(f"{when}: {plan.graph.name}, {1e3 * plan.step_time.total_s:.1f} ms", loc="left")
        lack = "" if plan.single.fits else ", had it the memory"
        print(f"{when} training, {plan.graph.name}: {plan.ratio_to_single:.3f} of one device's step{lack}")
    figure.savefig(flags.out / "train_a_policy.svg")
    print(f"saved {flags.out / 'train_a_policy.svg'}")


if __name__ == "__main__":
    main()
