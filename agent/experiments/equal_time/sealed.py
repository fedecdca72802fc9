"""The sealed test set: draws of the families from seeds that nothing was tuned on, and families never used.

It is for reported comparisons alone. Constants are tuned on the graphs that a training keeps for validation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from agent.experiments.equal_time.graph_cache import GraphCache
from agent.experiments.equal_time.sealed_large import LARGE_FAMILIES
from agent.experiments.equal_time.sealed_models import SEALED_FAMILIES
from agent.policy.seen import NOT_SEEN
from graphs.capture.capture import capture
from graphs.dataset import capture_draw
from graphs.families import FAMILIES
from graphs.op_graph import OpGraph
from graphs.system.errors import InputError

FIRST_SEED = 1000
"""Draws from here on are sealed."""
DRAWERS = {**SEALED_FAMILIES, **LARGE_FAMILIES}
STANDARD = (*FAMILIES, *SEALED_FAMILIES)
ALL = (*STANDARD, *LARGE_FAMILIES)


def sealed_graphs(
    folder: Path,
    *,
    n_known: int,
    n_new: int,
    how_seen: Callable[[OpGraph], str],
    families: Collection[str] = STANDARD,
    first_seed: int = FIRST_SEED,
    notify: Callable[[str], None] = print,
) -> list[OpGraph]:
    """Captures the sealed set, or reads what was captured before.

    Args:
        folder: keeps the graphs.
        n_known: draws of each family of the benchmark set.
        n_new: draws of each family that nothing was tuned on, those of large graphs among them.
        how_seen: what a policy was shown of a graph; a graph of which it saw the structure is drawn again.
        families: of which to draw.
        first_seed: draws from here on; a part of the set that was looked at is not to be used for a test of
            what was seen there.
        notify: what to do with a line about a capture.

    Raises:
        InputError: an unknown family, or a seed that is not sealed.
    """
    cache = GraphCache(folder, notify)

    def draws(family: str, count: int, make: Callable[[str, int], OpGraph]) -> Iterator[OpGraph]:
        named = (
            cache.graph(f"{family}-{seed}", partial(make, family, seed))
            for seed in itertools.count(first_seed)
        )
        return itertools.islice((graph for graph in named if how_seen(graph) == NOT_SEEN), count)

    if unknown := [family for family in families if family not in ALL]:
        raise InputError(f"no sealed family {', '.join(unknown)}; use some of {', '.join(ALL)}")
    if first_seed < FIRST_SEED:
        raise InputError(f"first seed {first_seed}: draws are sealed from {FIRST_SEED} on")
    known = [draws(family, n_known, capture_draw) for family in FAMILIES if family in families]
    new = [draws(family, n_new, _capture_new) for family in DRAWERS if family in families]
    return [graph for graphs in (*known, *new) for graph in graphs]


def _capture_new(family: str, seed: int) -> OpGraph:
    with torch.device("meta"):
        module, inputs = DRAWERS[family](np.random.default_rng([seed, *family.encode()]))
    return capture(module, inputs, optimizer="adam", name=f"{family}-{seed}", family=family)
