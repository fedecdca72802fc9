"""The server from which processes of tests begin: within a tenth of a second, with all that they need.

A new interpreter takes some seconds to import torch and to load the kernels.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

PRELOADED = ("agent.calibration.this_machine", "envs.runtime.torch_stages", "torch.utils.tensorboard")
PRELOADED += ("envs.runtime.backends.cuda.stream_host", "tests.agent.contexts.worker_cases")
PRELOADED += ("tests.faults.processes", "tests.warm_commands")

context = multiprocessing.get_context("forkserver")


def start() -> None:
    """Starts it in the present folder, from which it imports."""
    context.set_forkserver_preload([*PRELOADED])
    forkserver.ensure_running()
