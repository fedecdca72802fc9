"""A Ray cluster: the one that RAY_ADDRESS names, or one that is started on this machine and ends with us."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from graphs.system.errors import InputError

ADDRESS = "RAY_ADDRESS"
"""Environment variable that names a cluster, as Ray has it."""


class RayUnavailableError(InputError):
    """Ray is not installed, or its cluster cannot be reached; the message says what to do."""


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
