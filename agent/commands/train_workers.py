"""The part of the training command that trains one policy with several workers."""

from __future__ import annotations

from agent.contexts.workers.distributed import check_workers_fit
from agent.contexts.workers.distributed_config import EngineConfig, started_by_torchrun
from agent.contexts.workers.group_worker import Resolve, Train, run_worker
from agent.contexts.workers.process_group import joined
from agent.contexts.workers.ray_cluster import check_ray_is_installed, ray_cluster


def train_in_workers(engine: EngineConfig, resolve: Resolve, train: Train) -> int:
    """Trains as one of the workers that torchrun started, or starts workers on a Ray cluster.

    Args:
        resolve: gives the configuration, the folder of the run and whether to go on with it.
        train: what a worker does with a context that is ready.

    Returns:
        The exit code.

    Raises:
        InputError: what `resolve` raises, settings that the workers cannot share, or no Ray.
    """
    if started_by_torchrun():
        return run_worker(joined(), resolve, train)
    check_ray_is_installed()
    config, folder, resume = resolve()
    check_workers_fit(config, engine.workers)
    from agent.contexts.workers.ray_training import train_on_ray

    with ray_cluster(engine.workers):
        return train_on_ray(config, folder, resume=resume, n_workers=engine.workers, train=train)
