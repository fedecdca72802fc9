"""Once imported, both commands have run: all that they import and compile is there for the forks."""

from __future__ import annotations

import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from agent.commands import evaluate, train
from tests.training_cases import QUICK, write_toys

FLAGS = ["--graphs", "graphs.jsonl", "--timesteps", "128", "--name", "run", "--threads", "1", *QUICK]
PLACERS = ["single", "heft", "annealing", "random", "policy"]


def main() -> None:
    """Trains, and evaluates what was trained, in a folder that is removed."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        os.chdir(folder)
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            write_toys(Path())
            train.main(FLAGS)
            words = ["--graphs", "graphs.jsonl", "--policy", "runs/run", "--include-seen", "--budget", "50"]
            evaluate.main([*words, "--out", "out", "--placers", *PLACERS])
        os.chdir(before)


main()
