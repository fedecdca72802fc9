"""Placements from a policy: walk a problem and take the best device, or draw one, at every op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent.policy import Policy
from agent.threads import torch_threads
from agent.walks import Walks
from envs.episodes import EpisodeBatch
from envs.problem import Problem
from graphs.op_graph import IntArray

WIDTH = 64
"""Episodes walked side by side."""
TIE = 1e-4
"""Logits this close are equal and the first device wins, whatever rounding makes of them at other widths."""


def decode(
    policy: Policy,
    problem: Problem,
    order: str = "topo",
    n_samples: int = 0,
    rng: np.random.Generator | None = None,
    *,
    walks: Walks | None = None,
) -> IntArray:
    """Placements of one problem.

    Args:
        order: name of the order to walk in.
        n_samples: how many placements to draw; 0 = one, taking the best device at every op.
        rng: source of randomness; without it, one of a fixed seed.
        walks: how to walk; by default as the policy does.

    Returns:
        Device of every op, int64 (max(n_samples, 1), n_ops). Where no device had room for an op, the rest is
        on the device with the most memory.

    Raises:
        WalkError, NoRoomError, OrderError: as `EpisodeBatch`.
    """
    return decode_many(policy, [problem], order, n_samples, rng, walks=walks)[0]


def decode_many(
    policy: Policy,
    problems: Sequence[Problem],
    order: str = "topo",
    n_samples: int = 0,
    rng: np.random.Generator | None = None,
    *,
    walks: Walks | None = None,
) -> list[IntArray]:
    """`decode` for many problems, walked side by side; one array per problem."""
    rng = rng or np.random.default_rng(0)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63))) if n_samples else None
    walker = Policy(policy.network)
    walker.set_problems(problems)
    copies = max(n_samples, 1)
    # Longest first, so that no long walk is begun when the others are about to end.
    longest_first = sorted(range(len(problems)), key=lambda index: -problems[index].graph.n_ops)
    waiting = [index for index in reversed(longest_first) for _ in range(copies)]
    width, walks = min(WIDTH, len(waiting)), walks or policy.walks
    batch = EpisodeBatch(problems, width, orders=(order,), **walks.arguments)
    found: list[list[IntArray]] = [[] for _ in problems]
    with torch_threads(1):
        for index, device_of in _walk(walker, batch, waiting, generator, rng):
            found[index].append(device_of)
    return [np.stack(placements) for placements in found]


@torch.inference_mode()
def _walk(
    policy: Policy,
    batch: EpisodeBatch,
    waiting: list[int],
    generator: torch.Generator | None,
    rng: np.random.Generator,
) -> list[tuple[int, IntArray]]:
    """Walk every problem that waits (the last first); (problem, placement) pairs as they end."""
    shortest, wanted = waiting[0], len(waiting)
    policy.encode(torch.arange(len(policy.bank)))
    found: list[tuple[int, IntArray]] = []
    counts = np.ones(batch.n, dtype=bool)
    for episode in range(batch.n):
        batch.begin(episode, waiting.pop(), 0, rng)
    while len(found) < wanted:
        _, over = batch.step(_choose(policy, batch, generator))
        for episode in np.flatnonzero(over).tolist():
            if counts[episode]:
                ending = batch.ending(episode)
                found.append((ending.problem, _complete(ending.device_of, batch.problems[ending.problem])))
            # Every episode has to go on; what is walked when nothing waits is not looked at.
            counts[episode] = bool(waiting)
            batch.begin(episode, waiting.pop() if waiting else shortest, 0, rng)
    return found


def _choose(policy: Policy, batch: EpisodeBatch, generator: torch.Generator | None) -> NDArray[Any]:
    seen = batch.observation
    obs = {name: torch.as_tensor(rows, device=policy.device) for name, rows in seen._asdict().items()}
    logits = policy.logits(obs).cpu()
    if generator is None:
        scores = logits.numpy()
        best: NDArray[Any] = np.argmax(scores > scores.max(axis=1, keepdims=True) - TIE, axis=1)
        return best
    return torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1).numpy()


def _complete(device_of: IntArray, problem: Problem) -> IntArray:
    return np.where(device_of < 0, np.argmax(problem.cluster.memory_bytes), device_of)
