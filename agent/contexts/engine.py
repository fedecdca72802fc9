"""The engine that runs study trials, trials or the workers of one training: this machine or a Ray cluster."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from agent.learn.config import ConfigError, TrainConfig
from graphs.system.command_line import as_typed, name_of
from graphs.system.errors import InputError
from graphs.system.settings import Settings, option

DISTRIBUTED, HERE = "distributed", "local"
"""The contexts of one training: by several workers, and in this process, which a Ray cluster cannot run."""
LOCAL, RAY = ENGINES = ("local", "ray")
ADDRESS = "RAY_ADDRESS"
"""Environment variable that names a cluster, as Ray has it."""
CODE = ("model", "plugin")
"""Settings that name code of the user's."""
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

    @property
    def on_ray(self) -> bool:
        """Says whether a Ray cluster runs them."""
        return self.engine == RAY

    @property
    def is_under_torchrun(self) -> bool:
        """Says whether torchrun started this process, by the environment variables that it sets."""
        return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()

    def check_context(self, context: str) -> None:
        """Checks that the engine can run a context.

        Raises:
            ConfigError: it cannot.
            RayUnavailableError: Ray is not installed.
        """
        if self.is_under_torchrun and context != DISTRIBUTED:
            raise ConfigError(f"context is {context}; torchrun is for --context {DISTRIBUTED}")
        if self.on_ray and context == HERE:
            raise ConfigError(f"context is {context}; --engine ray is for {DISTRIBUTED} and studies")
        if context == DISTRIBUTED and not (self.on_ray or self.is_under_torchrun):
            raise ConfigError(
                "start several workers by torchrun --nproc-per-node N train_agent.py ... or by --engine ray"
            )
        if self.on_ray:
            check_ray_is_installed()


class RayUnavailableError(InputError):
    """Ray is not installed, or its cluster cannot be reached; the message says what to do."""


def code_flags(config: TrainConfig, keys: Sequence[str] = CODE) -> str:
    """Returns the flags that name the user's code of a training; each begins with a blank."""
    values = {key: getattr(config, key) or () for key in keys}
    words = {key: [value] if isinstance(value, str) else value for key, value in values.items()}
    return "".join(f" --{key} {shlex.join(names)}" for key, names in words.items() if names)


def how_to_resume(config: TrainConfig) -> str:
    """Returns the command that resumes a run."""
    words = f"--resume --name {config.name}{code_flags(config)}"
    if config.context == DISTRIBUTED:
        return f"resume with {name_of('train_agent.py')} {words}, started as before (torchrun or Ray)"
    return f"resume with: {as_typed('train_agent.py')} {words}"


def check_ray_is_installed() -> None:
    """Checks that Ray can be imported.

    Raises:
        RayUnavailableError: it cannot.
    """
    if find_spec("ray") is None:
        raise RayUnavailableError("--engine ray needs Ray; pip install 'placewalk[ray]'")


@contextmanager
def ray_cluster(n_processes: int) -> Iterator[None]:
    """Connects to the cluster, and leaves it afterwards.

    Args:
        n_processes: that a local cluster has to have room for, of one core each.

    Raises:
        RayUnavailableError: Ray is not installed, or the cluster cannot be reached.
    """
    check_ray_is_installed()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns that this will change
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if os.environ.get(ADDRESS):
            ray.init(address=os.environ[ADDRESS], **quiet)
        else:
            n_cpus = max(n_processes, os.cpu_count() or 1)
            ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where, reason = os.environ.get(ADDRESS) or "this machine", str(error).splitlines()[0]
        raise RayUnavailableError(f"no Ray cluster at {where}: {reason}") from None
    try:
        yield
    finally:
        ray.shutdown()
