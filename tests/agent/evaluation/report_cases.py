"""Rows of evaluations that nobody ran, for the tests of the report."""

import numpy as np

from agent.placers.improvements import Improvement
from tests.agent.evaluation_cases import make_trial

PLACERS = (("policy", "topo"), ("policy", "dfs"), ("heft", ""), ("annealing", ""), ("single", ""))


def synthetic_trials(n_graphs, *, placers=PLACERS, seeds=1, n_improvements=64):
    """Trials with step times that are drawn; families of 25 graphs."""
    rng = np.random.default_rng(0)
    return [
        make_trial(
            graph=f"family{graph // 25}-{graph:04}",
            family=f"family{graph // 25}",
            cluster="4xv100",
            placer=placer,
            order=order,
            seed=seed,
            step_time_s=(times := 1e-2 * np.sort(rng.uniform(1.0, 2.0, n_improvements))[::-1])[-1],
            lower_bound_s=8e-3,
            single_s=2.5e-2,
            evaluations=10_000,
            wall_s=1.0,
            improvements=tuple(
                Improvement(int(at), at * 1e-4, float(time))
                for at, time in zip(np.arange(n_improvements) * 100 + 1, times, strict=True)
            ),
        )
        for graph in range(n_graphs)
        for placer, order in placers
        for seed in range(seeds)
    ]
