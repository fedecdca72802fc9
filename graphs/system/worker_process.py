"""A process that handles one request at a time, and may die or hang: whoever waits for it is told.

This module loads nothing heavy, so that a process looks after its parent as soon as it is there.

`ProcessPoolExecutor` would not do: it waits for ever for the rest of an answer when a process dies while it
sends one. Here each process has a pipe of its own, which ends with it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from graphs.system.interrupts import interrupts_put_off
from graphs.system.user_code import end_at_once

CONTEXT = multiprocessing.get_context("spawn")
"""Starts the processes."""
GRACE_S = 5.0
"""Seconds that a process has to end after it closed its pipe."""
LONGEST_WAIT_S = 3600.0
"""Longest wait at once: the system does not take any number."""
SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable that keeps Python from putting the working directory first on the import path."""
START_S = 300.0
"""Seconds that a process has to start, if requests have a limit: more than a busy machine takes to import."""

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Request_contra = TypeVar("Request_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True)
class Death:
    """Why a process ended, or was ended, before it had an answer."""

    reason: str


class Process(Protocol[Request_contra, Answer_co]):
    """Interface to a process that handles one request at a time: `WorkerProcess`, or the same elsewhere."""

    def give(self, request: Request_contra, /) -> None:
        """Hands over a request; the one before has been answered."""

    def answer(self) -> Answer_co | Death | None:
        """Returns the answer, or None where there is none so far."""

    def kill(self) -> None:
        """Ends the process at once, if there is one."""


class WorkerProcess(Generic[Request, Answer]):
    """Handles one request at a time in a process, which is started when it is needed, also after a death.

    The process ends with this one, whatever ends that, and leaves Ctrl-C to it.

    Args:
        handler: makes the answer to a request, never None; it is sent to the process.
        timeout_s: seconds after which a request has taken too long; None = never. The start of the process
            does not count; it has a limit of its own.
        inherits: true if the handler holds what only a process that is being started can be given, such as
            pipes. Such a process does not import the user's script, which others do, as it may register
            placers.

    Attributes:
        connection: becomes readable when there may be an answer.
        deadline_s: time on the monotonic clock when the start or the present request has taken too long.
    """

    def __init__(
        self, handler: Callable[[Request], Answer], timeout_s: float | None, *, inherits: bool = False
    ) -> None:
        self._handler, self._inherits = handler, inherits
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._process: BaseProcess | None = None
        self._unsent: list[object] = []

    def give(self, request: Request) -> None:
        """Hands over a request; the one before has been answered."""
        if self._process is None:
            self._start()
            self._unsent = [request] if self._inherits else [self._handler, request]
        else:
            self._unsent = [request]
            self._send()

    def answer(self) -> Answer | Death | None:
        """Returns the answer, or None where there is none so far."""
        try:
            if self.connection.poll():
                answer: Answer | None = self.connection.recv()
                if answer is None:
                    self._send()
                return answer
            if time.monotonic() < self.deadline_s:
                return None
        except BlockingIOError:  # half an answer came
            pass
        except (EOFError, OSError):
            return Death(self._reason())
        late = f"did not start in {START_S:g} s" if self._unsent else f"no result in {self._timeout_s:g} s"
        self.kill()
        return Death(late)

    @property
    def is_stopped(self) -> bool:
        """Says whether a signal has stopped the process; false where there is no `/proc` to tell."""
        if self._process is None:
            return False
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] in "Tt"

    def kill(self) -> None:
        """Ends the process at once, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self.connection.close()
            self._process = None

    def _start(self) -> None:
        self.connection, theirs = CONTEXT.Pipe()
        if self._timeout_s < math.inf:
            _limit_waits(self.connection, self._timeout_s)
        self.deadline_s = time.monotonic() + START_S if self._timeout_s < math.inf else math.inf
        inherited = self._handler if self._inherits else None
        process = CONTEXT.Process(target=_serve, args=(theirs, inherited), daemon=True)
        with theirs, _undisturbed(), _without_main() if self._inherits else nullcontext():
            process.start()
            self._process = process

    def _send(self) -> None:
        """Sends what the process waits for; if that has died, `answer` finds out."""
        patience_s = self._timeout_s
        try:
            self.connection.send(self._unsent.pop(0))
        except BlockingIOError:  # it took no more for as long as a request may last
            self._unsent, patience_s = [], 0.0
        except OSError:
            pass
        if not self._unsent:
            self.deadline_s = time.monotonic() + patience_s

    def _reason(self) -> str:
        """Waits for the end of the process, which closed its pipe, and describes it."""
        assert self._process is not None
        self._process.join(GRACE_S)
        code = self._process.exitcode
        self.kill()
        if code is None:
            return "worker closed its pipe"
        if code >= 0:
            return f"worker died (exit code {code})"
        with suppress(ValueError):
            return f"worker killed by {signal.Signals(-code).name}"
        return f"worker killed by signal {-code}"


def answers_of(
    busy: Collection[WorkerProcess[Request, Answer]],
) -> Iterator[tuple[WorkerProcess[Request, Answer], Answer | Death]]:
    """Waits until a process says something or takes too long; yields the answers, of which there may be none.

    Processes may wait for one that is stopped, and are late as it is: it comes first.
    """
    deadline_s = min((process.deadline_s for process in busy), default=0.0)
    patience_s = min(max(deadline_s - time.monotonic(), 0.0), LONGEST_WAIT_S)
    wait([process.connection for process in busy], patience_s)
    is_late = time.monotonic() >= deadline_s
    for process in sorted(busy, key=lambda process_of: is_late and not process_of.is_stopped):
        if (answer := process.answer()) is not None:
            yield process, answer


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Makes a process start completely, ignore SIGINT as long as it lives, and import no file beside it.

    Python would look for the modules of its own library in the working directory first.
    """
    before = os.environ.get(SAFE_PATH, "")
    os.environ[SAFE_PATH] = "1"
    try:
        resource_tracker.ensure_running()  # starting it unblocks SIGINT
        with interrupts_put_off():
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which processes inherit
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        os.environ[SAFE_PATH] = before


@contextmanager
def _without_main() -> Iterator[None]:
    """Keeps the process from importing the user's script, which may start processes where it is imported."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _limit_waits(connection: Connection, seconds: float) -> None:
    """Limits how long reads and writes of a pipe may wait, as the process at its other end may be stopped."""
    parts = divmod(round(min(max(seconds, 1e-6), LONGEST_WAIT_S) * 1e6), 1_000_000)
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            pipe.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", *parts))


def _serve(connection: Connection, handler: Callable[[Any], Any] | None) -> None:
    """Asks with a None for the handler, and for the first request; each answer asks for the next."""
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        if handler is None:
            connection.send(None)
            handler = connection.recv()
        assert handler is not None
        connection.send(None)
        while True:
            connection.send(handler(connection.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    end_at_once(1)
