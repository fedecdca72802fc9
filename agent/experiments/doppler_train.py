"""Trains the published agents of Doppler, Placeto and GDP, in the environment that `doppler.sh` makes.

It needs the code of Yao et al., "DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow
graphs" (arXiv 2505.23131), and nothing of Placewalk. `python doppler_train.py CODE OUT SECONDS [GRAPH ...]`
trains each method on each graph with the settings of CODE/config_files, in turns, until SECONDS of processor
time are over. The same command resumes. Each episode is a line of `OUT/GRAPH-METHOD/episodes.jsonl`.
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
TURN_S = {"critical-path": 60, "doppler-imitation": 120, "doppler": 60, "gdp": 20, "placeto": 20}
"""Processor seconds of a turn; imitation has one."""
CHECKPOINT_EVERY = 5
"""Episodes between two checkpoints."""


class Training:
    """One method on one graph: its code, and where it stands."""

    def __init__(self, code: Path, out: Path, graph: str, method: str) -> None:
        import torch
        from run_placement import Run_placement  # type: ignore[import-not-found]

        self.folder = out / f"{graph}-{method}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.args = SimpleNamespace(**json.loads((code / "config_files" / SETTINGS[method]).read_text()))
        name = f"gdp_{GRAPHS[graph]}" if method == "gdp" else GRAPHS[graph]
        self.args.compute_graph_path = str(code / "compute_graph" / f"{name}.txt")
        self.args.log_path = f"{self.folder}/"
        if method == "critical-path":
            self.args.run_real_sys_rl, self.args.run_sim_rl = False, True  # the costs are the simulator's
        for kind in ("node", "device") if method == "doppler" else ():
            policy = out / f"{graph}-doppler-imitation" / f"{kind}_policy.pt"
            setattr(self.args, f"load_pretrain_{kind}_policy_path", str(policy))
        self.run = Run_placement(self.args)
        torch.autograd.set_detect_anomaly(False)  # a check of theirs that takes half of the time
        if method == "placeto":
            self.run.agent.device_selection = _on_a_copy(self.run.agent.device_selection)
        agent = vars(self.run.agent)
        self.parts = {name: part for name, part in agent.items() if hasattr(part, "state_dict")}
        self.total, self.episode, self.cpu_s, self.rng = torch.zeros(1), 0, 0.0, torch.get_rng_state()
        if (self.folder / "checkpoint.pt").exists():
            state = torch.load(self.folder / "checkpoint.pt", weights_only=True)
            self.total, self.episode = state["total"], state["episode"]
            self.cpu_s, self.rng = state["cpu_s"], state["rng"]
            for name, part in self.parts.items():
                part.load_state_dict(state[name])

    def take_turn(self, seconds: float) -> None:
        """Goes on for so many processor seconds, or until the episodes of the settings are over."""
        import torch

        torch.set_rng_state(self.rng)
        one = self.run.gdp_run_one_episode if self.args.use_gdp else self.run.run_one_episode
        lines, end_s = [], self.cpu_s + seconds
        while self.episode < self.args.num_episode and self.cpu_s < end_s:
            begin_s, left = time.process_time(), 1 - self.episode / self.args.num_episode
            epsilons = self.args.node_epsilon * left, self.args.device_epsilon * left
            cost, _, devices, self.total = one(self.episode, self.run.graph.clone(), *epsilons, self.total)
            self.cpu_s += time.process_time() - begin_s
            line = {"episode": self.episode, "cpu_s": self.cpu_s, "step": float(cost)}
            lines.append(json.dumps({**line, "devices": devices.tolist()}) + "\n")
            self.episode += 1
            if self.episode % CHECKPOINT_EVERY == 0 or self.cpu_s >= end_s:
                self._save(torch, lines)
                lines = []

    def _save(self, torch: Any, lines: list[str]) -> None:
        self.rng = torch.get_rng_state()
        state = {name: part.state_dict() for name, part in self.parts.items()}
        rest = {"total": self.total, "episode": self.episode, "cpu_s": self.cpu_s, "rng": self.rng}
        torch.save(state | rest, self.folder / "checkpoint.new")
        os.replace(self.folder / "checkpoint.new", self.folder / "checkpoint.pt")
        for name in {"node_policy", "device_policy"} & state.keys():
            torch.save(state[name], self.folder / f"{name}.pt")
        with (self.folder / "episodes.jsonl").open("a") as file:
            file.writelines(lines)


def _on_a_copy(select: Any) -> Any:
    """Gives Placeto its own features, as moving a graph to a GPU does; without, a step on CPUs fails."""

    def selected(graph: Any, *rest: Any) -> Any:
        graph = graph.clone()
        graph.ndata["feat"] = graph.ndata["feat"].clone()
        return select(graph, *rest)

    return selected


def main(code: Path, out: Path, seconds: float, graphs: list[str]) -> None:
    """Trains all methods on the graphs in turns."""
    import torch

    os.environ.setdefault("DGLBACKEND", "pytorch")
    sys.modules["wandb"] = ModuleType("wandb")  # imported by the code, used by none of the settings
    sys.path.insert(0, str(code))
    torch.set_num_threads(1)
    trainings: dict[tuple[str, str], Training] = {}
    end_s = time.process_time() + seconds
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for method, graph in itertools.cycle(itertools.product(SETTINGS, graphs or GRAPHS)):
            if (graph, method) not in trainings:
                trainings[graph, method] = Training(code, out, graph, method)
            training, left_s = trainings[graph, method], end_s - time.process_time()
            if left_s <= 0:
                return
            done_s = training.cpu_s if method == "doppler-imitation" else 0.0
            training.take_turn(min(TURN_S[method] - done_s, left_s))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), float(sys.argv[3]), sys.argv[4:])
