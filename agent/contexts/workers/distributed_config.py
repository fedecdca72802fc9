"""Settings of the engine that runs study trials or the workers of one training: this machine or Ray."""

from __future__ import annotations

import os
from dataclasses import dataclass

from agent.training.config import ConfigError
from graphs.system.settings import Settings, option

DISTRIBUTED, HERE = "distributed", "local"
"""The contexts of one training: by several workers, and in this process, which a Ray cluster cannot run."""
LOCAL, RAY = ENGINES = ("local", "ray")
GROUP = "several machines (--context distributed, and studies)"
"""Heading of the command line's help."""


@dataclass(frozen=True)
class EngineConfig(Settings, error=ConfigError):
    """The engine that runs trials or workers; it does not influence the policy.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    engine: str = option(
        LOCAL,
        "system that runs trials or workers; local: this machine, where torchrun starts the workers; ray: "
        "the Ray cluster of RAY_ADDRESS, or a new one on this machine",
        group=GROUP,
        choices=ENGINES,
    )
    workers: int = option(
        2, "workers of a distributed training on a Ray cluster", group=GROUP, least=1, most=1024
    )

    def check_context(self, context: str) -> None:
        """Checks that the engine can run a context.

        Raises:
            ConfigError: it cannot.
        """
        if started_by_torchrun() and context != DISTRIBUTED:
            raise ConfigError(f"context is {context}; torchrun is for --context {DISTRIBUTED}")
        if self.engine == RAY and context == HERE:
            raise ConfigError(f"context is {context}; --engine ray is for {DISTRIBUTED} and studies")
        if context == DISTRIBUTED and self.engine != RAY and not started_by_torchrun():
            raise ConfigError(
                "start several workers by torchrun --nproc-per-node N train_agent.py ... or by --engine ray"
            )


def started_by_torchrun() -> bool:
    """Says whether torchrun started this process, by the environment variables that it sets."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
