"""Settings for the whole test suite, and for the workers among which `make test` shares it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import fork_server

N_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LONGEST = (
    "tests/faults",
    "tests/golden",
    "tests/agent",
    "tests/envs/runtime",
    "tests/examples",
    "tests/gpu",
    "tests/graphs/system",
    "tests/test_",
)
"""Tests that start processes or train: files that workers take first, so that all end at the same time."""
BYTES_PER_WORKER = 3e9
"""Memory that one worker and the processes that its tests start may take."""

# Examples are the same in every run, and a busy machine fails no test.
settings.register_profile("placewalk", deadline=None, derandomize=True, database=None)
settings.load_profile("placewalk")

n_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
if n_workers:
    # Read when torch is first imported, by this process and by those that it starts.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(N_CORES // n_workers, 1)))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first where several workers take one file after the other."""
    if n_workers:
        items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the server of processes, for tests that may need it."""
    if any(item.nodeid.startswith(LONGEST) for item in session.items):
        fork_server.start()


@pytest.fixture(scope="session", autouse=True)
def _workers_begin_from_the_server() -> Iterator[None]:
    """Forks worker processes too, unless there is a GPU, which forks cannot use."""
    with pytest.MonkeyPatch.context() as patch:
        if not Path("/dev/nvidiactl").exists():
            patch.setattr("graphs.system.worker_process.CONTEXT", fork_server.context)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Returns the workers of `-n auto`: one a core, as far as there is memory for them."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(min(N_CORES, int(memory_bytes / BYTES_PER_WORKER)), 1)
