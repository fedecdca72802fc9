"""Search of the order of a plan's actions: simulated annealing on the simulated pipelined step.

An order has a word for each stage, of the letters of `envs.pipeline.schedules.KIND_OF`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from agent.placers.state import SearchState
from envs.objective import OVER_BYTES, TOTAL_S
from envs.pipeline.schedules import is_order

FOR_CUTS = 0.75
"""Share of the budget that the search of the cuts has, if that of the order of actions follows."""
HOT, COLD = 1e-2, 1e-5
"""Temperature at first and at last, as a share of the step time."""
PENALTY = 5.0
"""Multiple of the step time that counts for as many bytes over the limits as a device has."""
SPLIT, PATTERN = 0.05, 0.2
"""Shares of moves that split a backward pass or join it, and that repeat another pattern."""
NEAR = 0.3
"""Probability with which an action moves no farther than one step; each further step is as likely again."""

Words = tuple[str, ...]


def starts(n_stages: int, count: int) -> Iterator[Words]:
    """Yields the orders of `1f1b`, of `gpipe` and of zero-bubble schedules with ever more memory.

    Source: Qi et al. 2023, arXiv 2401.10241: ZB-H1, ZB-H2 and, between them, one microbatch more.
    """
    ranks = range(n_stages)
    depths = [n_stages - rank for rank in ranks]
    yield tuple(pattern(count, depth, None) for depth in depths)
    yield tuple(pattern(count, count, None) for _ in ranks)
    yield tuple(pattern(count, depth, 0 if rank else None) for rank, depth in enumerate(depths))
    for more in (0, 1):
        yield tuple(pattern(count, depth + more, rank + more) for rank, depth in enumerate(depths))
    yield tuple(pattern(count, 2 * depth - 1, 2 * rank) for rank, depth in enumerate(depths))
    yield tuple(pattern(count, count, count) for _ in ranks)


def pattern(count: int, depth: int, delay: int | None) -> str:
    """Spells some forward actions, then one action of each kind in turn while there are any.

    Args:
        count: microbatches.
        depth: forward actions before the first backward action.
        delay: microbatches by which `W` is later than `I`; None = the backward pass is not split.
    """
    word = "F" * min(depth, count)
    for at in range(count):
        word += "B" if delay is None else "I"
        word += "W" if delay is not None and at >= delay else ""
        word += "F" if at + depth < count else ""
    return word + "W" * (word.count("I") - word.count("W"))


def neighbour(words: Words, rng: np.random.Generator) -> Words | None:
    """Draws words of which one differs; None where it is no order."""
    stage, drawn = int(rng.integers(len(words))), rng.random()
    word = words[stage]
    count = word.count("F")
    if drawn < SPLIT:
        word = word.replace("W", "").replace("I", "B") if "W" in word else word.replace("B", "IW")
    elif drawn < SPLIT + PATTERN:
        depth = len(word) - len(word.lstrip("F")) + int(rng.integers(-2, 3))
        delay = word[: word.find("W")].count("I") - 1 + int(rng.integers(-2, 3)) if "W" in word else None
        word = pattern(count, max(depth, 1), delay and max(delay, 0))
    else:
        at, by = int(rng.integers(len(word))), int(rng.choice((-1, 1))) * int(rng.geometric(NEAR))
        rest, to = word[:at] + word[at + 1 :], max(0, at + by)
        word = rest[:to] + word[at] + rest[to:]
    if word == words[stage] or not is_order(word, count):
        return None
    return (*words[:stage], word, *words[stage + 1 :])


def search_actions(search: SearchState, rng: np.random.Generator) -> None:
    """Anneals the order of the actions of the best pipeline with what is left of the budget.

    Bytes over the memory limits count as time. As in `agent.placers.pipeline.annealing`, the greatest cost of
    an order that replaces the present one is drawn before it is scored.
    """
    objective, cuts = search.pipelined, search.best_cuts
    assert cuts is not None, "a placer scores at least one pipeline"
    stages, began = objective.stages(cuts), search.progress
    memory_bytes = search.problem.cluster.memory_bytes.mean()

    def score(words: Words, until_s: float = np.inf) -> tuple[float, float]:
        search.spend(1)
        found = objective.pipelined.score(replace(stages, actions=words), until_s=until_s)
        if found < search.best_score:
            search.keep(stages.device_of, found[TOTAL_S], found[OVER_BYTES], cuts._replace(actions=words))
        return found

    def progress() -> float:
        return (search.progress - began) / (1 - began) if search.left else 1.0

    first = starts(len(stages.devices), objective.pipeline.microbatches)
    scored = [(score(words), words) for words in first if progress() < 1]
    present, words = min(scored, default=((np.inf, np.inf), ()))
    while words and (done := progress()) < 1:
        temperature = HOT * (COLD / HOT) ** done
        most = _cost(present, memory_bytes) * (1 - temperature * math.log(1 - rng.random()))
        moved = neighbour(words, rng)
        if moved is None:
            continue
        found = score(moved, most)
        if _cost(found, memory_bytes) <= most:
            present, words = found, moved


def _cost(score: tuple[float, float], memory_bytes: float) -> float:
    return score[TOTAL_S] * (1 + PENALTY * score[OVER_BYTES] / memory_bytes)
