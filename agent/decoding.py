"""Placements from a policy: walk a problem and take the best device, or draw one, at every op."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
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
CULL_EVERY, CULLED = 10, 4
"""Decisions between two looks at who is behind in a beam; 1 / `CULLED` of the walks are replaced then."""
TIE = 1e-4
"""Logits this close are equal and the first device wins, whatever rounding makes of them at other widths."""


def decode(
    policy: Policy,
    problem: Problem,
    order: str = "topo",
    n_samples: int = 0,
    rng: np.random.Generator | None = None,
    *,
    greedy: bool = True,
    walks: Walks | None = None,
) -> IntArray:
    """Placements of one problem.

    Args:
        order: name of the order to walk in.
        n_samples: how many placements to draw.
        rng: source of randomness; without it, one of a fixed seed.
        greedy: whether a placement that takes the best device at every op comes before those drawn.
        walks: how to walk; by default as the policy does.

    Returns:
        Device of every op, int64 (greedy + n_samples, n_ops). Where no device had room for an op, the rest is
        on the device with the most memory.

    Raises:
        WalkError, NoRoomError, OrderError: as `EpisodeBatch`.
    """
    return decode_many(policy, [problem], order, n_samples, rng, greedy=greedy, walks=walks)[0]


def decode_many(
    policy: Policy,
    problems: Sequence[Problem],
    order: str = "topo",
    n_samples: int = 0,
    rng: np.random.Generator | None = None,
    *,
    greedy: bool = True,
    walks: Walks | None = None,
) -> list[IntArray]:
    """`decode` for many problems, walked side by side; one array per problem."""
    rng = rng or np.random.default_rng(0)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63))) if n_samples else None
    walker = Policy(policy.network)
    walker.set_problems(problems)
    kinds = [False] * greedy + [True] * n_samples
    # Longest first, so that no long walk is begun when the others are about to end.
    longest_first = sorted(range(len(problems)), key=lambda index: -problems[index].graph.n_ops)
    waiting = [(index, drawn) for index in reversed(longest_first) for drawn in reversed(kinds)]
    width, walks = min(WIDTH, len(waiting)), walks or policy.walks
    batch = EpisodeBatch(problems, width, orders=(order,), **walks.arguments)
    found: list[list[IntArray]] = [[] for _ in problems]
    with torch_threads(1):
        for (index, drawn), device_of in _walk(walker, batch, waiting, generator, rng):
            found[index].insert(len(found[index]) if drawn else 0, device_of)
    return [np.stack(placements) for placements in found]


def decode_beam(
    policy: Policy,
    problem: Problem,
    order: str = "topo",
    width: int = WIDTH,
    rng: np.random.Generator | None = None,
    *,
    walks: Walks | None = None,
) -> IntArray:
    """Placements from walks that do not go alone: those behind are replaced by copies of those ahead.

    All visit the same ops in step, so the step time of what each has placed tells which is ahead. Walks draw
    their devices, as in a stochastic beam search or a particle filter, but for one that takes the best device
    at every op and is never replaced while it has room.

    Args:
        width: how many walks, at least 1.
        order, rng, walks: as for `decode`.

    Returns:
        As `decode`, int64 (width, n_ops), the greedy placement first.

    Raises:
        WalkError, NoRoomError, OrderError: as `EpisodeBatch`.
    """
    rng = rng or np.random.default_rng(0)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    walker = Policy(policy.network)
    walker.set_problems([problem])
    batch = EpisodeBatch([problem], width, orders=(order,), **(walks or policy.walks).arguments)
    batch.begin(0, 0, 0, rng)
    for episode in range(1, width):
        batch.fork(0, episode)
    with torch_threads(1):
        _walk_together(walker, batch, generator)
    return np.stack([_complete(batch.ending(episode).device_of, problem) for episode in range(width)])


@torch.inference_mode()
def _walk_together(policy: Policy, batch: EpisodeBatch, generator: torch.Generator) -> None:
    """Walk to the end of all episodes; one without room goes on as a copy of one that has it."""
    policy.encode(torch.arange(1))
    drawn = np.arange(batch.n) > 0
    decisions = 0
    while True:
        _, over = batch.step(_choose(policy, batch, drawn, generator))
        decisions += 1
        if over.all():
            return
        n_behind = batch.n // CULLED if decisions % CULL_EVERY == 0 else 0
        if n_behind := max(n_behind, int(over.sum())):
            ranked = np.argsort(np.where(over, np.inf, batch.time_s()), kind="stable").tolist()
            ahead = ranked[: min(n_behind, batch.n - n_behind)]
            for source, target in zip(cycle(ahead), ranked[-n_behind:], strict=False):
                if drawn[target] or over[target]:
                    batch.fork(source, target)


Kind = tuple[int, bool]
"""A problem, and whether its devices are drawn."""


@torch.inference_mode()
def _walk(
    policy: Policy,
    batch: EpisodeBatch,
    waiting: list[Kind],
    generator: torch.Generator | None,
    rng: np.random.Generator,
) -> list[tuple[Kind, IntArray]]:
    """Walk all that wait (the last first); what was walked and its placement, as they end."""
    shortest, wanted = waiting[0], len(waiting)
    policy.encode(torch.arange(len(policy.bank)))
    found: list[tuple[Kind, IntArray]] = []
    walked = [waiting.pop() for _ in range(batch.n)]
    drawn = np.array([each for _, each in walked])
    counts = np.ones(batch.n, dtype=bool)
    for episode, (problem, _) in enumerate(walked):
        batch.begin(episode, problem, 0, rng)
    while len(found) < wanted:
        _, over = batch.step(_choose(policy, batch, drawn, generator))
        for episode in np.flatnonzero(over).tolist():
            problem, _ = walked[episode]
            if counts[episode]:
                device_of = batch.ending(episode).device_of
                found.append((walked[episode], _complete(device_of, batch.problems[problem])))
            # Every episode has to go on; what is walked when nothing waits is not looked at.
            counts[episode] = bool(waiting)
            walked[episode] = waiting.pop() if waiting else shortest
            problem, drawn[episode] = walked[episode]
            batch.begin(episode, problem, 0, rng)
    return found


def _choose(
    policy: Policy, batch: EpisodeBatch, drawn: NDArray[np.bool_], generator: torch.Generator | None
) -> NDArray[Any]:
    seen = batch.observation
    obs = {name: torch.as_tensor(rows, device=policy.device) for name, rows in seen._asdict().items()}
    logits = policy.logits(obs).cpu()
    scores = logits.numpy()
    best: NDArray[Any] = np.argmax(scores > scores.max(axis=1, keepdims=True) - TIE, axis=1)
    if generator is None:
        return best
    return np.where(drawn, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1), best)


def _complete(device_of: IntArray, problem: Problem) -> IntArray:
    return np.where(device_of < 0, np.argmax(problem.cluster.memory_bytes), device_of)
