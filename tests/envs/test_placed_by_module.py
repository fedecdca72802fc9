"""Steps of graphs that are placed by module."""

import numpy as np
import torch
from torch import nn

from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.capture.capture import capture
from graphs.granularity import with_granularity


class Experts(nn.Module):
    """Sends all rows to each of three experts, ordered by what the router says of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for expert, column in zip(self.experts, self.router(x).unbind(-1), strict=True):
            rows = column.argsort()
            total = total.index_add(0, rows, expert(x[rows]))
        return total.sum()


def test_experts_on_devices_of_their_own_run_side_by_side() -> None:
    with torch.device("meta"):
        module, x = Experts(1024), torch.ones(8192, 1024)
    graph = with_granularity(capture(module, (x,), name="experts"), "module")
    unit = dict(zip(graph.modules, graph.unit_of.tolist(), strict=True))
    device_of = np.zeros(graph.n_ops, dtype=np.int64)
    for expert in range(3):
        device_of[graph.unit_of == unit[f"experts.{expert}"]] = expert + 1
    step = simulate_problem(Problem(graph, get_cluster("4xv100")), device_of)
    for phase, kind in (("forward", "aten.addmm"), ("backward", "aten.mm")):
        runs = [
            [
                op
                for op in range(graph.n_ops)
                if (graph.phases[op], graph.op_types[op], graph.modules[op]) == (phase, kind, f"experts.{i}")
            ]
            for i in range(3)
        ]
        assert all(runs)
        begins, ends = [step.start_s[ops].min() for ops in runs], [step.finish_s[ops].max() for ops in runs]
        assert max(begins) < min(ends), phase
