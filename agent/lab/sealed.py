"""The sealed test set: draws of the families from seeds that nothing was tuned on, and families never used.

It is for reported comparisons alone. Constants are tuned on the graphs that a training keeps for validation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from functools import cache

from agent.instances.profiles import DATA
from agent.policy.seen import NOT_SEEN
from graphs.dataset import capture_draw
from graphs.families import FAMILIES
from graphs.io.graph_files import read_graphs
from graphs.op_graph import OpGraph
from graphs.system.errors import InputError
from graphs.system.progress import followed

FIRST_SEED = 1000
"""Draws from here on are sealed."""
KEPT = DATA / "sealed.jsonl.gz"
"""Draws of families that nothing was tuned on, drawn by `equal_time/sealed_*.py` of b643ead."""
NEW = ("unet", "dit", "towers", "recommender", "conformer", "mixer")
LARGE = ("large-nmt", "large-ptb", "large-gpt", "large-llama", "large-moe", "large-t5", "large-ssm")
"""Graphs of thousands of ops."""
ALL = (*FAMILIES, *NEW, *LARGE)


def sealed_graphs(
    families: Collection[str] = ALL,
    *,
    first_seed: int = FIRST_SEED,
    how_seen: Callable[[OpGraph], str] = lambda graph: NOT_SEEN,
) -> list[OpGraph]:
    """Captures a draw of each family of the benchmark set, and reads one of each of the others.

    Args:
        families: of which to draw.
        first_seed: the draw, if it was not seen; a part of the set that was looked at is not to be used for a
            test of what was seen there.
        how_seen: what a policy was shown of a graph; if it saw the structure, the next draw is taken.

    Raises:
        InputError: an unknown family, a seed that is not sealed, or no draw is kept.
    """
    if unknown := [family for family in families if family not in ALL]:
        raise InputError(f"no sealed family {', '.join(unknown)}; use some of {', '.join(ALL)}")
    if first_seed < FIRST_SEED:
        raise InputError(f"first seed {first_seed}: draws are sealed from {FIRST_SEED} on")

    def first_unseen(draws: Iterable[OpGraph]) -> OpGraph | None:
        return next((graph for graph in draws if how_seen(graph) == NOT_SEEN), None)

    found = []
    for family in followed([name for name in ALL if name in families], "sealed graphs"):
        if family in FAMILIES:
            graph = first_unseen(capture_draw(family, seed) for seed in itertools.count(first_seed))
        else:
            graph = first_unseen(
                graph for seed, graph in _kept() if graph.family == family and seed >= first_seed
            )
        if graph is None:
            raise InputError(
                f"{KEPT.name} holds no draw of {family} from seed {first_seed} on; give another first seed"
            )
        found.append(graph)
    return found


@cache
def _kept() -> list[tuple[int, OpGraph]]:
    """Reads the seeds and graphs that are kept."""
    return [(int(graph.name.rpartition("-")[2]), graph) for graph in read_graphs(KEPT)]
