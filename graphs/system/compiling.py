"""Compilation ahead of what needs it, on all cores."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path

from numba import __version__, config
from numba.core.registry import cpu_target

from graphs.system.jit import own_folder
from graphs.system.progress import progress_bars
from graphs.system.worker_process import Death, WorkerProcess, answers_of

Job = Callable[[], object]
"""Calls kernels with arguments of the types that others will call them with; it is sent to a process."""
ROOMS = ("graphs", "envs", "agent")
N_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
MOST_PROCESSES = 8
"""More would mostly wait: there are few large kernels that do not call each other."""


def compile_ahead(jobs: Mapping[str, Job]) -> None:
    """Runs those jobs that have not run since a kernel changed, and shows a bar.

    Processes share what they compile: where a job needs a kernel that another job compiles, it waits. What
    is compiled when the jobs are interrupted stays. Without a folder to keep it in, nothing is compiled.

    Args:
        jobs: by a name that says which kernels they call with which types; the longest first.
    """
    try:
        folder = own_folder(compile_ahead)
    except OSError:
        return
    marks = {name: folder / hashlib.sha256(f"{name} {_version()}".encode()).hexdigest() for name in jobs}
    left = [name for name in jobs if not marks[name].exists()]
    if left and not config.DISABLE_JIT:
        print("Compiling loops once, for later commands too. No budget counts this time.", file=sys.stderr)
        for name in _finished({name: jobs[name] for name in left}):
            marks[name].touch(mode=0o600)


def _finished(jobs: Mapping[str, Job]) -> Iterator[str]:
    """Runs jobs in processes; yields the names of those whose process lives."""
    waiting, n_done = list(reversed(jobs)), 0
    # One more than there are cores, as some wait for others.
    n_processes = min(N_CORES + 1, MOST_PROCESSES, len(jobs))
    idle = [WorkerProcess[Job, bool](_run, None, inherits=True) for _ in range(n_processes)]
    busy: dict[WorkerProcess[Job, bool], str] = {}
    try:
        with progress_bars() as report:
            while waiting or busy:
                while waiting and idle:
                    busy[process := idle.pop()] = waiting.pop()
                    process.give(jobs[busy[process]])
                report("compiling", n_done, len(jobs))
                for process, answer in answers_of(busy):
                    name, n_done = busy.pop(process), n_done + 1
                    idle.append(process)
                    if not isinstance(answer, Death):
                        yield name
            report("compiling", n_done, len(jobs))
    finally:
        for process in (*idle, *busy):
            process.kill()


def _run(job: Job) -> bool:
    """Runs a job quietly. Where it fails, what needs its kernels will say why."""
    gc.disable()  # the compiler keeps nearly all that it makes, and looking through it takes time
    with (
        suppress(Exception),
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        job()
    return True


@cache
def _version() -> str:
    """Returns a digest of the files with kernels, and what numba compiles them for."""
    root = Path(__file__).parents[2]
    texts = (path.read_bytes() for room in ROOMS for path in sorted((root / room).rglob("*.py")))
    digest = hashlib.sha256(b"".join(text for text in texts if b"system.jit import" in text))
    processor = cpu_target.target_context.codegen().magic_tuple()
    return f"{digest.hexdigest()} {__version__} {sys.version} {processor}"
