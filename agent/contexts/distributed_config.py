"""The settings of a training by several workers: who starts them, and how many there are."""

from __future__ import annotations

import os
from dataclasses import dataclass

from agent.settings import Settings, option
from agent.training.config import ConfigError

DISTRIBUTED = "distributed"
"""The context of a training by several workers."""
TORCHRUN, RAY = ENGINES = ("torchrun", "ray")
GROUP = "several workers (--context distributed)"
"""Heading of the command line's help."""


@dataclass(frozen=True)
class DistributedConfig(Settings, error=ConfigError):
    """How the workers of one training are started; it decides nothing of what is learned.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    engine: str = option(
        TORCHRUN,
        "what starts the workers: torchrun, which runs this command, or a Ray cluster: that of RAY_ADDRESS, "
        "or one on this machine",
        group=GROUP,
        choices=ENGINES,
    )
    workers: int = option(2, "processes on the Ray cluster", group=GROUP, least=1, most=1024)


def started_by_torchrun() -> bool:
    """Says whether torchrun started this process, by the environment variables that it sets."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
