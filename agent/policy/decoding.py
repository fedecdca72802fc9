"""Placements from a policy: walk a problem and take the best device, or draw one, at every op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent.policy.mdp_config import MdpConfig
from agent.policy.policy import Policy
from agent.policy.threads import torch_threads
from envs.mdp.episodes import EpisodeBatch
from envs.problem import Problem
from graphs.op_graph import IntArray

WIDTH = 64
"""Episodes walked side by side."""
CULL_EVERY, MOST_CULLS, CULLED = 20, 256, 4
"""A beam looks at who is behind every so many decisions, in long walks about so often, as they take long to
copy; 1 / `CULLED` of the walks are replaced then."""
ISLANDS = 4
"""Parts of a beam in which walks are compared, if it is large enough. One alone soon descends from one walk;
where a choice shows hundreds of ops later, as with layers of a recurrent network, often from a wrong one.
Source: the island particle model, Vergé et al. 2013 (arXiv 1306.3911), without exchange between islands."""
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
    beam: bool = False,
    walks: MdpConfig | None = None,
) -> IntArray:
    """Placements of one problem.

    Args:
        order: name of the order to walk in.
        n_samples: how many placements to draw.
        rng: source of randomness; without it, one of a fixed seed.
        greedy: whether a placement that takes the best device at every op comes before those drawn.
        beam: whether walks that fall behind are replaced by copies of those ahead, as in a stochastic beam
            search or a particle filter of `ISLANDS`. All visit the same ops in step, so the step time of what
            each has placed tells who is ahead. The greedy one stays while it has room.
        walks: how to walk; by default as the policy does.

    Returns:
        Device of every op, int64 (greedy + n_samples, n_ops). Where no device had room for an op, the rest is
        on the device with the most memory.

    Raises:
        MdpError, InfeasibleError, OrderError: as `EpisodeBatch`.
    """
    return decode_many(policy, [problem], order, n_samples, rng, greedy=greedy, beam=beam, walks=walks)[0]


def decode_many(
    policy: Policy,
    problems: Sequence[Problem],
    order: str = "topo",
    n_samples: int = 0,
    rng: np.random.Generator | None = None,
    *,
    greedy: bool = True,
    beam: bool = False,
    walks: MdpConfig | None = None,
) -> list[IntArray]:
    """`decode` for many problems, walked side by side; one array per problem."""
    rng = rng or np.random.default_rng(0)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63))) if n_samples else None
    walker = Policy(policy.network)
    walker.set_problems(problems)
    kinds = [False] * greedy + [True] * n_samples
    # Longest first, so that no long walk is begun when the others are about to end.
    last_to_first = sorted(range(len(problems)), key=lambda index: problems[index].graph.n_ops)
    members = [kinds] if beam else [[drawn] for drawn in reversed(kinds)]
    waiting = [Team(index, np.array(each)) for index in last_to_first for each in members]
    n_teams = min(max(WIDTH // len(members[0]), 1), len(waiting))
    arguments = (walks or policy.mdp_config).arguments
    batch = EpisodeBatch(problems, n_teams * len(members[0]), orders=(order,), **arguments)
    found: list[list[IntArray]] = [[] for _ in problems]
    with torch_threads(1):
        for team, placements in _walk(walker, batch, waiting, generator, rng):
            before = found[team.problem]
            before[:] = [*before, *placements] if team.drawn[0] else [*placements, *before]
    return [np.stack(placements) for placements in found]


@dataclass(frozen=True, eq=False)
class Team:
    """Episodes of one problem that begin together and visit the same ops.

    Attributes:
        problem: its index.
        drawn: whether a walk draws its devices, bool (n_walks,); else it takes the best.
    """

    problem: int
    drawn: NDArray[np.bool_]


@torch.inference_mode()
def _walk(
    policy: Policy,
    batch: EpisodeBatch,
    waiting: list[Team],
    generator: torch.Generator | None,
    rng: np.random.Generator,
) -> list[tuple[Team, list[IntArray]]]:
    """Let all teams walk that wait (the last first); the teams with their placements, as they end."""
    policy.encode_all()
    found: list[tuple[Team, list[IntArray]]] = []
    shortest, wanted, size = waiting[0], len(waiting), len(waiting[0].drawn)
    teams = [waiting.pop() for _ in range(batch.n // size)]
    counts = np.ones(len(teams), dtype=bool)
    drawn = np.stack([team.drawn for team in teams])
    decisions = np.zeros(len(teams), dtype=np.int64)
    cull_every = np.ones(len(teams), dtype=np.int64)

    def begin(number: int, team: Team) -> None:
        batch.begin(number * size, team.problem, 0, rng)
        for episode in range(number * size + 1, (number + 1) * size):
            batch.fork(number * size, episode)
        teams[number], drawn[number], decisions[number] = team, team.drawn, 0
        cull_every[number] = max(CULL_EVERY, batch.problems[team.problem].graph.n_ops // MOST_CULLS)

    for number, team in enumerate(teams):
        begin(number, team)
    while len(found) < wanted:
        _, flat = batch.step(_choose(policy, batch, drawn.ravel(), generator))
        over = flat.reshape(drawn.shape)
        decisions += 1
        ended = over.all(axis=1)
        if size > 1:
            due = decisions % cull_every == 0
            for number in np.flatnonzero(~ended & (over.any(axis=1) | due)).tolist():
                _cull(batch, number * size, over[number], drawn[number], behind=bool(due[number]))
        for number in np.flatnonzero(ended).tolist():
            if counts[number]:
                problem = batch.problems[teams[number].problem]
                episodes = range(number * size, (number + 1) * size)
                placements = [_complete(batch.result(each).device_of, problem) for each in episodes]
                found.append((teams[number], placements))
            # Every team has to go on; what is walked when nothing waits is not looked at.
            counts[number] = bool(waiting)
            begin(number, waiting.pop() if waiting else shortest)
    return found


def _cull(
    batch: EpisodeBatch, first: int, over: NDArray[np.bool_], drawn: NDArray[np.bool_], *, behind: bool
) -> None:
    """Replace walks of a team that have no room, and if asked those behind, by copies of those ahead."""
    everyone = np.arange(first, first + len(over))
    if over.any():
        ahead_first = _ahead_first(batch, everyone[~over])
        for source, target in zip(cycle(ahead_first), everyone[over].tolist(), strict=False):
            batch.fork(source, target)
    if behind:
        for island in np.array_split(everyone, min(ISLANDS, max(len(over) // CULLED, 1))):
            ahead_first = _ahead_first(batch, island)
            n_behind = len(island) // CULLED
            for source, target in zip(ahead_first[:n_behind], ahead_first[::-1], strict=False):
                if drawn[target - first]:
                    batch.fork(source, target)


def _ahead_first(batch: EpisodeBatch, episodes: IntArray) -> list[int]:
    """Episodes by the step time of what they have placed, the fastest first."""
    ahead_first: list[int] = episodes[np.argsort(batch.time_s()[episodes], kind="stable")].tolist()
    return ahead_first


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
