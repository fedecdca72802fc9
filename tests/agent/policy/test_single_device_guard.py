"""Learned placers end no worse than the best single device, within their budget."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agent.placers.base import PLACERS, Budget, Placer, SearchState, names_of
from agent.placers.heuristics.single import single_devices
from agent.policy.placers import no_worse_than_single
from agent.policy.serialization import load_policy
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.capture.capture import capture
from tests.agent.placement_cases import GB, make_cluster, training_graph

UNEQUAL = Problem(training_graph(2, 2), make_cluster(4, slower=3.0))
"""A problem whose first device is three times as fast as the second, and so on."""


class Recommender(nn.Module):
    """Embedding bags and a perceptron over their products."""

    def __init__(self, n_bags: int = 8, n_rows: int = 1_000_000, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU())
        self.bags = nn.ModuleList(nn.EmbeddingBag(n_rows, width, mode="sum") for _ in range(n_bags))
        n_products = (n_bags + 1) ** 2
        self.top = nn.Sequential(
            nn.Linear(n_products + width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        below = self.bottom(dense)
        bags = [bag(sparse[:, number]) for number, bag in enumerate(self.bags)]
        features = torch.stack([below, *bags], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        logits = self.top(torch.cat([below, products], dim=1))
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.ones(len(dense), 1))


@cache
def recommender() -> Problem:
    with torch.device("meta"):
        inputs = (torch.zeros(128, 13), torch.zeros(128, 8, 4, dtype=torch.long))
        graph = capture(Recommender(), inputs)
    return Problem(graph, get_cluster("gpu+cpu"))


@pytest.mark.parametrize("name", names_of("step", learned=True))
def test_a_recommender_on_gpu_and_cpu_is_no_slower_than_one_gpu(name: str) -> None:
    placer = PLACERS[name].with_policy(load_policy("pretrained"), "topo")
    found = placer.place(recommender(), Budget(40), np.random.default_rng(0))
    assert found.feasible
    assert found.step_time.total_s <= recommender().scale_s * (1 + 1e-9)


def slowest_first(search: SearchState, rng: np.random.Generator) -> None:
    """Scores the single devices, the slowest first, as long as the budget lasts."""
    search.score(single_devices(search.problem)[::-1])


@pytest.mark.parametrize(
    ("evaluations", "best"), [(1, 3), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (100, 0), (None, 0)]
)
def test_devices_are_scored_within_the_budget_the_fastest_first(evaluations: int | None, best: int) -> None:
    scored: list[int] = []
    score = SearchState.score

    def note(search: SearchState, devices_of: np.ndarray, **options: bool) -> np.ndarray:
        found = score(search, devices_of, **options)
        scored.extend(devices_of[: len(found), 0].tolist())
        return found

    budget = Budget(evaluations, None if evaluations else 60.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchState, "score", note)
        placer = Placer("slowest-first", no_worse_than_single(slowest_first))
        found = placer.place(UNEQUAL, budget, np.random.default_rng(0))
    n_singles = min(4, evaluations - 1) if evaluations else 4
    n_own = min(4, evaluations - n_singles) if evaluations else 4
    assert scored == [3, 2, 1, 0][:n_own] + [0, 1, 2, 3][:n_singles]
    assert found.evaluations == len(scored)
    assert (found.placement.device_of == best).all()


def test_a_limit_of_seconds_does_not_keep_the_devices_from_being_scored() -> None:
    placer = Placer("slowest-first", no_worse_than_single(slowest_first))
    found = placer.place(UNEQUAL, Budget(None, seconds=1e-9), np.random.default_rng(0))
    assert (found.placement.device_of == 0).all()


def test_a_feasible_placement_beats_a_faster_device_that_is_out_of_memory() -> None:
    tight = replace(UNEQUAL, cluster=make_cluster(4, memory_bytes=3 * GB, slower=3.0))
    spread = PLACERS["memory-fill"].place(tight, Budget(1), np.random.default_rng(0)).placement.device_of

    def score_spread(search: SearchState, rng: np.random.Generator) -> None:
        search.score(spread[None])

    placer = Placer("spread", no_worse_than_single(score_spread))
    found = placer.place(tight, Budget(10), np.random.default_rng(0))
    assert found.feasible
    assert (found.placement.device_of == spread).all()
    assert step_time_s(tight, np.zeros_like(spread)) < found.step_time.total_s
