"""The command `train_agent.py`.

Everything is imported within `run_command`, so that a signal that comes meanwhile ends in one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphs.system.command_line import name_of, run_command

if TYPE_CHECKING:
    from agent.learn.config import TrainConfig

BOTH_RULES = ("4xv100-sxm2", "4xv100")
"""Clusters with each of the rules that the presets have; loops are compiled for each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 1 stopped or failed, 2 wrong input."""
    return run_command(name_of("train_agent.py"), lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    from agent.commands import train_flags as flags

    # Read when torch is loaded. Threads that spin while they wait starve others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = vars(flags.make_parser().parse_args(arguments))
    compiles = options.pop("compile")
    engine, study = flags.engine_settings(options), flags.study_settings(options)

    def resolve() -> tuple[TrainConfig, Path, bool]:
        config, folder = flags.resolve(options)
        engine.check_context(config.context)
        return config, folder, bool(options["resume"])

    if study is not None:
        config, _, _ = resolve()
        from agent.studies.study_runner import run_study

        return 0 if run_study(config, study, on_ray=engine.on_ray) else 1
    if engine.is_under_torchrun:
        from agent.contexts.distributed import train_under_torchrun

        return train_under_torchrun(resolve)
    if engine.on_ray:
        from agent.contexts.ray_training import train_on_ray

        return train_on_ray(resolve, engine.workers)
    resolved = None if compiles else resolve()
    from agent.contexts.local import LocalContext, compile_for_training, train_in

    if resolved is None:
        compile_for_training(BOTH_RULES, ("auto",))
        return 0
    config, folder, resume = resolved
    context = LocalContext(config, folder, resume=resume)
    compile_for_training(config.cluster)
    return train_in(context)


if __name__ == "__main__":
    sys.exit(main())
