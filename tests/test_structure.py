"""Numbers that keep the house small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_OF_THE_ENVIRONMENT = 35
"""Modules of ours, packages left out, that importing `PlacementEnv` may load. It is given problems, so it
needs nothing that makes them."""


def loaded_by(module: str) -> set[str]:
    """Returns the modules of ours, packages left out, that a fresh interpreter holds after importing one."""
    code = (
        f"import sys, {module}; print(*(name for name, module in sys.modules.items()"
        " if name.split('.')[0] in ('graphs', 'envs', 'agent') and not hasattr(module, '__path__')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_environment_needs_few_modules_and_no_pipelines() -> None:
    modules = loaded_by("envs.placement.env")
    assert len(modules) <= MOST_OF_THE_ENVIRONMENT, sorted(modules)
    assert not [name for name in modules if name.startswith(("envs.pipeline", "agent"))]
