"""Does imitation, and a graph encoder that learns, pay for its time? `python -m agent.lab.encoder_and_imitation OUT`.

Trains each arm on one core for equal processor time, places graphs that it did not see, and appends rows to
`OUT/rows.csv`; trainings that are there are not made again. Run two at the same time, one a core.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ALONE = {"demonstrations": 0, "imitation_epochs": 0, "dagger_rounds": 0}
PPO = {"learning_rate": 1e-3, "n_steps": 256, "batch_size": 4096}
"""What `train_agent.py` has by default; `pretraining.json` has other values for after imitation."""
ARMS: dict[str, dict[str, Any]] = {
    "imitation": {},
    "reinforcement": ALONE | PPO,
    "encoder learns": ALONE | PPO | {"learn_encoder": True},
    "no encoder": ALONE | PPO | {"encoder": "none", "rounds": 1},
}
RECIPES = ("default", "pretraining")
UNSEEN = ("unet", "dit", "towers", "recommender", "conformer", "mixer")


def main() -> None:
    """Makes the rows, or one training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, nargs="+", default=[8.0])
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--one", nargs=4)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.one:
        recipe, minutes, seed, arm = options.one
        make(options.out, recipe, float(minutes), int(seed), arm)
        return
    for job in itertools.product(options.minutes, options.recipes, options.seeds, options.arms):
        minutes, recipe, seed, arm = job
        name = f"{recipe}-{minutes:g}-{seed}-{arm.replace(' ', '-')}"
        with (options.out / f"{name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not (options.out / f"{name}.done").exists():
                words = [sys.executable, "-m", "agent.lab.encoder_and_imitation", str(options.out), "--one"]
                subprocess.run([*words, recipe, str(minutes), str(seed), arm], check=True)
                (options.out / f"{name}.done").touch()


def make(out: Path, recipe: str, minutes: float, seed: int, arm: str) -> None:
    """Trains and places; every second that a clock counts is one of the processor."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from graphs.system import running_time

    running_time._WALL = running_time._PROCESSOR
    import torch

    torch.set_num_threads(1)
    from agent.commands.train import main as train

    name = f"check-{recipe}-{minutes:g}-{seed}-{arm.replace(' ', '-')}"
    settings = json.loads((HERE / f"{recipe}.json").read_text()) | ARMS[arm]
    settings |= {"minutes": minutes, "seed": seed, "threads": 1, "timesteps": 10**9}
    file = out / f"{name}.json"
    file.write_text(json.dumps(settings))
    folder = Path("runs") / name
    resume = (folder / "checkpoints").exists()
    if not (folder / "result.json").exists():
        words = ["--name", name, "--resume"] if resume else ["--name", name, "--config", str(file)]
        if train(words):
            raise SystemExit(f"{name}: failed")
    rows = list(place(folder, recipe, settings))
    decisions = json.loads((folder / "result.json").read_text())["timesteps"]
    with (out / "rows.csv").open("a", newline="") as table:
        fcntl.flock(table, fcntl.LOCK_EX)
        writer = csv.writer(table)
        for row in rows:
            writer.writerow([recipe, minutes, seed, arm, decisions, *row])


def place(folder: Path, recipe: str, settings: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yields graph, family, kind, cluster, and the steps of one device, one decode and the best of 17."""
    import numpy as np

    from agent.lab.trials import _kept
    from agent.policy.decoding import Samples, decode
    from agent.policy.serialization import load_policy
    from envs.cluster.presets import get_cluster
    from envs.problem import Problem
    from envs.simulator.simulate import simulate_problem
    from graphs.dataset import capture_draw
    from graphs.families import FAMILIES
    from graphs.io.graph_files import read_graphs, write_graphs

    policy = load_policy(folder)
    kept = Path("runs") / f"check-{recipe}.jsonl.gz"
    if not kept.exists():
        seeds = (6000, 6001, 6002) if recipe == "default" else (6000,)
        drawn = [capture_draw(family, seed) for family in FAMILIES for seed in seeds]
        new = [graph for seed, graph in _kept() if graph.family in UNSEEN and seed < 1002]
        write_graphs(kept, drawn + new * (recipe == "pretraining"))
    families = settings["families"]
    graphs = [(each, "held out" if each.family in families else "unseen") for each in read_graphs(kept)]
    clusters = [name for name in dict.fromkeys(settings["cluster"]) if name != "random"]
    for (graph, kind), cluster in itertools.product(graphs, clusters):
        problem = Problem(graph, get_cluster(cluster))
        if not problem.is_feasible:
            continue
        found = decode(policy, problem, "topo", Samples(drawn=16), np.random.default_rng(0))
        steps_s = [simulate_problem(problem, each) for each in found]
        times_s = [step.total_s if step.fits else np.inf for step in steps_s]
        yield graph.name, graph.family, kind, cluster, problem.scale_s, times_s[0], min(times_s)


if __name__ == "__main__":
    main()
