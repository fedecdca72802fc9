"""Every way to place a graph: heuristics, list schedulers, search, and the learned policies."""

# Each module registers its placers when it is imported.
from agent.placers import (  # noqa: F401
    annealing,
    contiguous,
    fill,
    list_scheduling,
    rollout,
    round_robin,
    single,
    uniform,
)
from agent.placers.base import (
    PLACERS,
    Budget,
    PlacementResult,
    Placer,
    PlacerError,
    SearchState,
    Strategy,
    placer,
)

__all__ = [
    "PLACERS",
    "Budget",
    "PlacementResult",
    "Placer",
    "PlacerError",
    "SearchState",
    "Strategy",
    "placer",
]
