"""Declares what is asked about placers in equal time."""

from __future__ import annotations

from typing import Any

from agent.experiments.experiment import EXPERIMENTS, Experiment

SEARCHES = ("local-search", "annealing", "rollout-refine", "policy-refine")
"""Placers that use a whole budget, compared with `refine`."""
STOPPING = ("heft", "m-etf", "rollout", "policy", "rollout-beam", "policy-beam")
"""Placers that stop by themselves."""
HEURISTICS = ("single", "contiguous", "memory-fill", "metis", "m-topo", "m-sct")
OTHER_SEARCHES, FEW = ("exact", "cross-entropy"), (*SEARCHES, "policy")
RECURRENT = ("ptb", "nmt")
LARGE = ("large-nmt", "large-ptb", "large-gpt", "large-llama", "large-moe")
FIRST: dict[str, Any] = {
    "families": (),
    "cluster": "4xv100",
    "seconds": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "seeds": 1,
    "known": 2,
    "new": 3,
    "first_seed": 1000,
}
"""Settings of the first experiment."""
SHORT: dict[str, Any] = {"seconds": (0.3, 1.0, 3.0)}
SLOW: dict[str, Any] = {"cluster": "4xa100-pcie"}
LITTLE = {"seconds": (0.1, 0.3), "known": 1, "new": 1}
"""Settings of a quick run, on two families."""


def declare(
    name: str, question: str, searches: tuple[str, ...], stopping: tuple[str, ...], **settings: Any
) -> None:
    """Registers an experiment: the placers that it compares with `refine`, and the settings of its own."""
    experiment = Experiment(
        question,
        rows=(f"{name}.csv",),
        run="equal_time.answer:equal_time_rows",
        tables="equal_time.answer:equal_time_tables",
        settings={**FIRST, **settings},
        quick={**LITTLE, "families": settings.get("families", ("cifar10", "unet"))[:2]},
        fixed={"searches": searches, "stopping": stopping},
        figure="equal_time.figure:draw_rows",
    )
    EXPERIMENTS.register(name, experiment)


declare("equal_time", "Does learning beat search in equal time?", SEARCHES, STOPPING)
question, others = "Is another placer ahead of `refine`?", (*HEURISTICS, "policy-sample")
declare("equal_time_other_placers", question, OTHER_SEARCHES, others, **SHORT)
question = "Does learning gain more on slow links?"
declare("equal_time_slow_links", question, SEARCHES, STOPPING, **SHORT, **SLOW)
question, ends = "Does learning gain on recurrent graphs?", {"seconds": (1.0, 3.0), "first_seed": 3000}
declare("equal_time_recurrent", question, FEW, (), families=RECURRENT, known=12, **SLOW, **ends)
question, ends = "Does learning gain on large graphs?", {"seconds": (10.0,), "first_seed": 2000}
declare("equal_time_large", question, FEW, (), families=LARGE, **SLOW, **ends)
