"""What capturing large models takes: seconds and memory, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import ROOT, Figure

ALLOWED_S, ALLOWED_BYTES = 90.0, 2e9
"""What the capture of each may take."""
CAPTURE = """
import json, resource, sys, time
began = time.perf_counter()
from graphs.capture.user_model import capture_model
graph = capture_model("graphs.families.large:" + sys.argv[1]).graph
taken_s = time.perf_counter() - began
unit = 1 if sys.platform == "darwin" else 1024
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
print(json.dumps([graph.n_ops, taken_s, peak_bytes]))
"""


@pytest.mark.parametrize("model", ["gpt2_xl", "llama_7b", "seq2seq"])
def test_capture(stopwatch: Stopwatch, record: Callable[[Figure], None], model: str) -> None:
    done: list[subprocess.CompletedProcess[str]] = []

    def capture() -> None:
        words = [sys.executable, "-c", CAPTURE, model]
        done.append(
            subprocess.run(words, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True)
        )

    stopwatch(capture, rounds=1)
    n_ops, taken_s, peak_bytes = json.loads(done[0].stdout)
    group = "Captures of large models, torch's import included"
    allowed = "what one may take"
    record(Figure(group, f"{model}, {n_ops:,} ops", taken_s, "s", ALLOWED_S, allowed))
    record(Figure(group, f"{model}, peak memory", peak_bytes / 1e6, "MB", ALLOWED_BYTES / 1e6, allowed))
