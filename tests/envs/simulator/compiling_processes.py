"""Processes that compile kernels, forked from one that has loaded numba and its compiler.

Such a process begins with no kernel compiled, loaded or announced, as a new interpreter does, but sooner.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
SERVER = """
import json, os, sys
import numba
import graphs.system.jit

numba.njit(lambda x: x + 1)(1)  # loads the compiler
for request in sys.stdin:
    code, path, environment = json.loads(request)
    pipes = [os.pipe(), os.pipe()]
    pid = os.fork()
    if pid == 0:
        for descriptor, (_, end) in enumerate(pipes, 1):
            os.dup2(end, descriptor)
        sys.path.insert(0, path)
        os.environ.update(environment)
        numba.config.reload_config()
        status = 1
        try:
            exec(code, {})
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = []
    for end, other in pipes:
        os.close(other)
        with open(end) as file:
            texts.append(file.read())
    print(json.dumps([status, *texts]), flush=True)
"""


class CompilingProcesses:
    """Runs code in one process after another; to be closed."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, path: Path, environment: Mapping[str, str]) -> tuple[str, str]:
        """Runs code in a process of its own; returns the few lines it prints on stdout and on stderr.

        Args:
            path: of a folder to import from.
            environment: variables, those that numba reads among them.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([code, str(path), dict(environment)]) + "\n")
        self._server.stdin.flush()
        status, printed, announced = json.loads(self._server.stdout.readline())
        assert status == 0, announced
        return printed.strip(), announced.strip()

    def close(self) -> None:
        self._server.communicate()
