"""The cache of compiled kernels: kept between processes, announced, never older than what a kernel needs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from envs.simulator.jit import DAMAGED_OR_STALE

SOURCES = {
    "callee.py": "from envs.simulator.jit import kernel\n\n\n@kernel\ndef callee(x):\n    return x + 1\n",
    "constants.py": "FACTOR = 1\n",
    "arguments.py": "from typing import NamedTuple\n\n\nclass Two(NamedTuple):\n    a: int\n    b: int\n",
    "caller.py": "from callee import callee\nfrom constants import FACTOR\n"
    "from envs.simulator.jit import kernel\n\n\n@kernel(entry=True)\ndef caller(two):\n"
    "    return FACTOR * callee(two.a)\n",
}
CALL = "import arguments; from caller import caller; print(caller(arguments.Two(a=1, b=5)))"


def write_sources(folder: Path) -> None:
    for name, source in SOURCES.items():
        (folder / name).write_text(source)


def run_caller(folder: Path, call: str = CALL) -> tuple[str, str]:
    """Calls the caller in a new process; returns what it prints, and what is announced."""
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[3])])
    result = subprocess.run(
        [sys.executable, "-c", call],
        env={**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip(), result.stderr.strip()


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("callee.py", "x + 1", "x + 2", "3"),
        ("constants.py", "1", "10", "20"),
        ("arguments.py", "a: int\n    b: int", "b: int\n    a: int", "2"),
    ],
    ids=["callee", "imported constant", "order of fields"],
)
def test_a_changed_dependency_compiles_its_callers_anew(
    tmp_path: Path, name: str, old: str, new: str, expected: str
) -> None:
    write_sources(tmp_path)
    printed, announced = run_caller(tmp_path)
    assert printed == "2"
    assert announced.startswith("Compiling")
    assert len(announced.splitlines()) == 1
    assert run_caller(tmp_path) == ("2", "")
    (tmp_path / name).write_text(SOURCES[name].replace(old, new))
    printed, announced = run_caller(tmp_path)
    assert printed == expected
    assert announced


@pytest.mark.parametrize("kind", ["nbi", "nbc"], ids=["index", "machine code"])
def test_a_truncated_cache_is_dropped_and_rebuilt(tmp_path: Path, kind: str) -> None:
    write_sources(tmp_path)
    run_caller(tmp_path)
    for path in (tmp_path / "cache").rglob(f"*.{kind}"):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    printed, announced = run_caller(tmp_path)
    assert printed == "2"
    assert announced.startswith("Compiling")
    assert run_caller(tmp_path) == ("2", "")


def test_a_cache_that_names_a_renamed_type_is_dropped_and_rebuilt(tmp_path: Path) -> None:
    write_sources(tmp_path)
    run_caller(tmp_path)
    (tmp_path / "arguments.py").write_text(SOURCES["arguments.py"].replace("Two", "Both"))
    call = CALL.replace("Two", "Both")
    printed, announced = run_caller(tmp_path, call)
    assert printed == "2"
    assert announced.startswith("Compiling")
    assert run_caller(tmp_path, call) == ("2", "")


def test_an_index_cut_anywhere_is_recognized_as_damaged() -> None:
    whole = pickle.dumps((("1.0", 2), {("key", (1.5, None)): "caller.1.nbc"}), protocol=-1)
    for length in range(len(whole)):
        with pytest.raises(DAMAGED_OR_STALE):
            pickle.loads(whole[:length])
