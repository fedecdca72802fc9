"""Placements and observations are those of before the code was moved, to the last bit.

`tests/golden/placements.json` holds hashes. `python -m tests.agent.test_golden_placements` writes them anew,
for a change that is meant to change placements; say so in the commit.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.placers.base import PLACERS, Budget
from agent.policy.placers import LEARNED, learned_placer
from agent.policy.policy import Policy
from agent.policy.serialization import load_policy
from envs.cluster.presets import get_cluster
from envs.mdp.episodes import EpisodeBatch
from envs.problem import Problem
from graphs.dataset import load_family

GOLDEN = Path(__file__).parents[1] / "golden" / "placements.json"
CASES = (
    ("cifar10", 0, "4xv100", "topo"),
    ("cifar10", 3, "2xk80", "topo"),
    ("cifar10", 7, "placeto-k80:3", "topo"),
    ("ptb", 0, "4xv100", "topo"),
    ("ptb", 3, "gpu+cpu", "topo"),
    ("ptb", 5, "4xv100", "b-level"),
    ("nmt", 0, "4xv100", "topo"),
    ("nmt", 3, "2x4xa100", "topo"),
    ("resnet", 0, "4xv100", "topo"),
    ("resnet", 2, "2xk80", "bfs"),
    ("inception", 0, "4xv100", "topo"),
    ("gpt", 0, "4xv100", "topo"),
    ("gpt", 5, "4xv100", "topo"),
    ("bert", 0, "8xa100", "topo"),
    ("bert", 3, "gpu+cpu", "topo"),
    ("vit", 0, "4xv100", "reversed-topo"),
    ("moe", 0, "4xv100", "topo"),
    ("randwire", 0, "4xh100", "topo"),
    ("randwire", 3, "4xv100", "random"),
    ("llama", 0, "4xv100", "topo"),
)
"""Twenty graphs: family, number, cluster, and the order that policies visit the ops in."""
EVALUATIONS, EVALUATIONS_LEARNED = 200, 12
"""Budgets of the placers that learned nothing, and of those that decide with the shipped policy; the latter
get as many more as there are devices, which they spend on the single devices."""
N_OBSERVED = 60
"""Decisions of an episode whose observations are hashed."""


@cache
def shipped_policy() -> Policy:
    return load_policy("pretrained")


@cache
def problem_of(family: str, number: int, cluster: str) -> Problem:
    return Problem(load_family(family)[number], get_cluster(cluster))


def name_of(case: tuple[str, int, str, str]) -> str:
    return " ".join(map(str, case))


def place(case: tuple[str, int, str, str], name: str) -> str:
    """Hash of what a placer finds."""
    *where, order = case
    problem = problem_of(*where)
    placer = learned_placer(name, shipped_policy(), order) if name in LEARNED else PLACERS[name]
    budget = Budget(EVALUATIONS_LEARNED + problem.n_devices if name in LEARNED else EVALUATIONS)
    found = placer.place(problem, budget, np.random.default_rng(7))
    return digest(found.placement.device_of)


def observe(case: tuple[str, int, str, str], mdp: str) -> str:
    """Hash of the observations and rewards of two episodes that act at random."""
    *where, order = case
    rng = np.random.default_rng(11)
    batch = EpisodeBatch([problem_of(*where)], 2, orders=(order,), mdp=mdp)
    for episode in range(2):
        batch.begin(episode, 0, 0, rng)
    seen: list[Any] = []
    done = np.zeros(2, dtype=bool)
    while not done.any() and len(seen) < 5 * N_OBSERVED:
        seen += [rows.copy() for rows in batch.observation]
        rewards, done = batch.step(
            np.array([rng.choice(np.flatnonzero(row)) for row in batch.observation.mask])
        )
        seen.append(rewards)
    return digest(*seen)


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[
        :16
    ]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_placements_are_those_of_before(case: tuple[str, int, str, str]) -> None:
    expected = json.loads(GOLDEN.read_text())["placements"][name_of(case)]
    assert {name: place(case, name) for name in expected} == expected


@pytest.mark.parametrize("mdp", ["construct", "improve"])
@pytest.mark.parametrize("case", CASES[::3], ids=name_of)
def test_observations_are_those_of_before(case: tuple[str, int, str, str], mdp: str) -> None:
    assert observe(case, mdp) == json.loads(GOLDEN.read_text())["observations"][f"{name_of(case)} {mdp}"]


def main() -> None:
    """Write the hashes."""
    placements = {name_of(case): {name: place(case, name) for name in (*PLACERS, *LEARNED)} for case in CASES}
    observations = {
        f"{name_of(case)} {mdp}": observe(case, mdp)
        for case in CASES[::3]
        for mdp in ("construct", "improve")
    }
    GOLDEN.write_text(json.dumps({"placements": placements, "observations": observations}, indent=1) + "\n")


if __name__ == "__main__":
    main()
