"""The cache of compiled loops: kept between processes, announced, and never older than what a loop calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALLEE = "from envs.simulator.jit import kernel\n\n\n@kernel\ndef callee(x):\n    return x + {}\n"
CALLER = "from callee import callee\nfrom envs.simulator.jit import kernel\n\n\n" + (
    "@kernel(entry=True)\ndef caller(x):\n    return callee(x)\n"
)


def run_caller(folder: Path) -> tuple[str, str]:
    """Call the caller in a new process: what it prints, and what is announced."""
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[3])])
    result = subprocess.run(
        [sys.executable, "-c", "from caller import caller; print(caller(1))"],
        env={**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip(), result.stderr.strip()


def test_a_changed_callee_compiles_its_callers_anew(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "callee.py").write_text(CALLEE.format(1))
    printed, announced = run_caller(tmp_path)
    assert printed == "2"
    assert announced.startswith("Compiling")
    assert len(announced.splitlines()) == 1
    assert run_caller(tmp_path) == ("2", "")
    (tmp_path / "callee.py").write_text(CALLEE.format(2))
    printed, announced = run_caller(tmp_path)
    assert printed == "3"
    assert announced
