"""Trains the published agents of Doppler, Placeto and GDP, in the environment that `doppler.sh` makes.

It needs the code of Yao et al., "DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow
graphs" (arXiv 2505.23131), and nothing of Placewalk. `python doppler_train.py CODE OUT SECONDS [GRAPH ...]`
trains each method on each graph for SECONDS of processor time, with the settings of CODE/config_files. The
same command resumes. Each episode is a line of `OUT/GRAPH-METHOD/episodes.jsonl`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

SETTINGS = {
    "critical-path": "run_critical_path/run_critical_path.json",
    "doppler-imitation": "run_doppler/imitation_learning.json",
    "doppler": "run_doppler/rl_simulation_learning.json",
    "gdp": "run_gdp/rl_simulation_learning.json",
    "placeto": "run_placeto/rl_simulation_learning.json",
}
"""Settings of each method. `doppler` is reinforcement on the simulator, from the policies of imitation. `gdp`
and `placeto` are the same from random weights: no loss of theirs imitates."""
GRAPHS = {
    "chain_mm": "chain_mm_112nodes",
    "ffnn": "ffnn_192nodes",
    "transformer_block": "transformer_block_215nodes",
    "transformer_layer": "full_transformer_layer_261nodes",
}
CHECKPOINT_EVERY = 5
"""Episodes between two checkpoints."""


def train(code: Path, out: Path, graph: str, method: str, seconds: float) -> None:
    """Goes on for so many processor seconds, or until the episodes of the settings are over."""
    import torch

    folder = out / f"{graph}-{method}"
    folder.mkdir(parents=True, exist_ok=True)
    run, args = _opened(code, folder, graph, method)
    parts = {name: part for name, part in vars(run.agent).items() if hasattr(part, "state_dict")}
    total, first, cpu_s = torch.zeros(1), 0, 0.0
    if (folder / "checkpoint.pt").exists():
        state = torch.load(folder / "checkpoint.pt", weights_only=True)
        total, first, cpu_s = state["total"], state["episode"], state["cpu_s"]
        torch.set_rng_state(state["rng"])
        for name, part in parts.items():
            part.load_state_dict(state[name])
    one = run.gdp_run_one_episode if args.use_gdp else run.run_one_episode
    lines, end_s = [], cpu_s + seconds
    for episode in range(first, args.num_episode):
        begin_s, left = time.process_time(), 1 - episode / args.num_episode
        epsilons = args.node_epsilon * left, args.device_epsilon * left
        cost, _, devices, total = one(episode, run.graph.clone(), *epsilons, total)
        cpu_s += time.process_time() - begin_s
        line = {"episode": episode, "cpu_s": cpu_s, "step": float(cost), "devices": devices.tolist()}
        lines.append(json.dumps(line) + "\n")
        if (episode + 1) % CHECKPOINT_EVERY == 0 or cpu_s >= end_s:
            state = {name: part.state_dict() for name, part in parts.items()}
            rest = {"total": total, "episode": episode + 1, "cpu_s": cpu_s, "rng": torch.get_rng_state()}
            torch.save(state | rest, folder / "checkpoint.new")
            os.replace(folder / "checkpoint.new", folder / "checkpoint.pt")
            with (folder / "episodes.jsonl").open("a") as file:
                file.writelines(lines)
            lines = []
        if cpu_s >= end_s:
            break


def _opened(code: Path, folder: Path, graph: str, method: str) -> tuple[Any, SimpleNamespace]:
    import torch
    from run_placement import Run_placement  # type: ignore[import-not-found]

    args = SimpleNamespace(**json.loads((code / "config_files" / SETTINGS[method]).read_text()))
    name = f"gdp_{GRAPHS[graph]}" if method == "gdp" else GRAPHS[graph]
    args.compute_graph_path, args.log_path = f"{code}/compute_graph/{name}.txt", f"{folder}/"
    if method == "critical-path":
        args.run_real_sys_rl, args.run_sim_rl = False, True  # the costs are the simulator's
    run = Run_placement(args)
    if method == "doppler":
        state = torch.load(folder.parent / f"{graph}-doppler-imitation/checkpoint.pt", weights_only=True)
        for name in ("node_policy", "device_policy"):
            getattr(run.agent, name).load_state_dict(state[name])
    torch.autograd.set_detect_anomaly(False)  # a check of theirs that takes half of the time
    if method == "placeto":
        select = run.agent.device_selection

        def on_a_copy(graph: Any, *rest: Any) -> Any:
            graph = graph.clone()  # as moving it to a GPU does; without, a step on CPUs fails
            graph.ndata["feat"] = graph.ndata["feat"].clone()
            return select(graph, *rest)

        run.agent.device_selection = on_a_copy
    return run, args


def main(code: Path, out: Path, seconds: float, graphs: list[str]) -> None:
    """Trains each method on each graph."""
    import torch

    sys.modules["wandb"] = ModuleType("wandb")  # imported by the code, used by none of the settings
    sys.path.insert(0, str(code))
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for method, graph in itertools.product(SETTINGS, graphs or GRAPHS):
            train(code, out, graph, method, seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), float(sys.argv[3]), sys.argv[4:])
