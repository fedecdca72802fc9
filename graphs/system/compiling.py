"""Compilation ahead of what needs it, on all cores."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

from numba import __version__, config
from numba.core.registry import cpu_target

from graphs.system.jit import own_folder
from graphs.system.progress import progress_bars
from graphs.system.worker_process import Death, WorkerProcess, answers_of

Job = Callable[[], object]
"""Calls kernels with arguments of the types that others will call them with; it is sent to a process."""
ROOT = Path(__file__).parents[2]
MOST_PROCESSES = 8
"""More would mostly wait: there are few large kernels that do not call each other."""


def compile_ahead(jobs: Mapping[str, Job]) -> None:
    """Runs those jobs that have not run since a kernel changed, and shows a bar.

    Processes share what they compile: where a job needs a kernel that another job compiles, it waits. What
    is compiled when the jobs are interrupted stays. Nothing is compiled without a folder to keep it in, or in
    a daemonic process, which starts no others.

    Args:
        jobs: by a name that says which kernels they call with which types; the longest first.
    """
    if config.DISABLE_JIT or multiprocessing.current_process().daemon:
        return
    try:
        folder = own_folder(compile_ahead)
    except (OSError, RuntimeError):  # a disk that is full, or no home
        return
    marks = {name: folder / hashlib.sha256(f"{name} {_version()}".encode()).hexdigest() for name in jobs}
    left = [name for name in jobs if not marks[name].exists()]
    if left:
        print("Compiling loops once, for later commands too. No budget counts this time.", file=sys.stderr)
        for name in _finished({name: jobs[name] for name in left}):
            marks[name].touch(mode=0o600)


def _finished(jobs: Mapping[str, Job]) -> Iterator[str]:
    """Runs jobs in processes; yields the names of those whose process lives."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    n_processes = min(n_cores + 1, MOST_PROCESSES, len(jobs))  # one more, as some wait for others
    idle = [WorkerProcess[Job, bool](_run, None, inherits=True) for _ in range(n_processes)]
    busy: dict[WorkerProcess[Job, bool], str] = {}
    waiting, n_done = list(jobs)[::-1], 0
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
                    if answer is False:
                        process.kill()  # it may hold locks of kernels that others wait for
                    if not isinstance(answer, Death):
                        yield name
            report("compiling", n_done, len(jobs))
    finally:
        for process in (*idle, *busy):
            process.kill()


def _run(job: Job) -> bool:
    """Runs a job quietly; says whether it ended well. Where it fails, what needs its kernels will say why."""
    gc.disable()  # the compiler keeps nearly all that it makes, and looking through it takes time
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            job()
    except Exception:
        return False
    return True


@cache
def _version() -> str:
    """Returns a digest of the files with kernels, and what numba compiles them for."""
    paths = (path for room in ("graphs", "envs", "agent") for path in sorted((ROOT / room).rglob("*.py")))
    texts = [text for path in paths if b"system.jit import" in (text := path.read_bytes())]
    digest = hashlib.sha256(b"".join(texts))
    processor = cpu_target.target_context.codegen().magic_tuple()
    return f"{digest.hexdigest()} {__version__} {sys.version} {processor}"
