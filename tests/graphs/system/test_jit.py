"""The cache of compiled kernels: kept between processes, announced, never older than what a kernel needs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
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
        exec(code, {})
        sys.exit()
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
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
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


SOURCES = {
    "callee.py": "from graphs.system.jit import kernel\n\n\n@kernel\ndef callee(x):\n    return x + 1\n",
    "constants.py": "FACTOR = 1\n",
    "arguments.py": "from typing import NamedTuple\n\n\nclass Two(NamedTuple):\n    a: int\n    b: int\n",
    "caller.py": "from callee import callee\nfrom constants import FACTOR\n"
    "from graphs.system.jit import kernel\n\n\n@kernel(entry=True)\ndef caller(two):\n"
    "    return FACTOR * callee(two.a)\n",
}
CALL = "import arguments; from caller import caller; print(caller(arguments.Two(a=1, b=5)))"


@pytest.fixture(scope="module")
def processes() -> Iterator[CompilingProcesses]:
    running = CompilingProcesses()
    yield running
    running.close()


Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run_caller(processes: CompilingProcesses, tmp_path: Path) -> Run:
    """Calls the caller in a new process; returns what it prints, and what is announced."""

    def run(call: str = CALL, **environment: str) -> tuple[str, str]:
        return processes.run(call, tmp_path, {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), **environment})

    for name, source in SOURCES.items():
        (tmp_path / name).write_text(source)
    return run


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
    tmp_path: Path, run_caller: Run, name: str, old: str, new: str, expected: str
) -> None:
    printed, announced = run_caller()
    assert printed == "2"
    assert announced.startswith("Compiling")
    assert len(announced.splitlines()) == 1
    assert run_caller() == ("2", "")
    (tmp_path / name).write_text(SOURCES[name].replace(old, new))
    printed, announced = run_caller()
    assert printed == expected
    assert announced


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "one bit of machine code": lambda whole: whole[:-200] + bytes([whole[-200] ^ 4]) + whole[-199:],
}


@pytest.mark.parametrize("kind", ["nbi", "nbc"], ids=["index", "machine code"])
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, run_caller: Run, kind: str) -> None:
    run_caller()
    for damage in DAMAGES.values():
        for path in (tmp_path / "cache").rglob(f"*.{kind}"):
            path.write_bytes(damage(path.read_bytes()))
        printed, announced = run_caller()
        assert printed == "2"
        assert announced.startswith("Compiling")
        assert len(announced.splitlines()) == 1
    assert run_caller() == ("2", "")


def test_machine_code_for_other_types_is_compiled_anew(tmp_path: Path, run_caller: Run) -> None:
    """As left by two processes that compile for different types at the same time, and number files alike."""
    call = CALL.replace("a=1, b=5", "a={}, b=5")
    assert run_caller(call.format(1))[0] == "2"
    assert run_caller(call.format(1.5))[0] == "2.5"
    for first in (tmp_path / "cache").rglob("*.1.nbc"):
        first.write_bytes(first.with_name(first.name.replace(".1.nbc", ".2.nbc")).read_bytes())
    assert run_caller(call.format(1))[0] == "2"
    assert run_caller(call.format(1)) == ("2", "")
    assert run_caller(call.format(1.5)) == ("2.5", "")


TWICE_AT_ONCE = """
import os, arguments
from caller import caller
from numba.core import event
pids = []
for _ in range(2):
    pids.append(os.fork())
    if pids[-1] == 0:
        with event.install_recorder("numba:compile") as recorder:
            caller(arguments.Two(a=1, b=5))
        os._exit(len(recorder.buffer) // 2)
print(*sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""


def test_two_processes_compile_a_kernel_once(tmp_path: Path, run_caller: Run) -> None:
    printed = run_caller(TWICE_AT_ONCE)[0].split()
    assert sum(map(int, printed)) == 2
    assert all(path.name.endswith(".index.lock") for path in tmp_path.rglob("*.lock"))
    assert run_caller() == ("2", "")


def test_kernels_are_counted_as_they_are_compiled(run_caller: Run) -> None:
    """Callee and caller, each for integers and for floats, in one process; then the latter in another one."""
    begin = "import graphs.system.jit as jit; jit.PERIOD_S = -1.0\n"
    announced = run_caller(begin + CALL + "; caller(arguments.Two(a=1.5, b=5))")[1]
    first, *later = announced.splitlines()
    assert first.startswith("Compiling loops, and keeping them")
    assert later == [f"Compiling loops, {count} done ..." for count in range(1, 5)]
    announced = run_caller(begin + CALL + "; caller(arguments.Two(a=1, b=5.5))")[1]
    assert announced.splitlines()[1:] == ["Compiling loops, 1 done ..."]


@pytest.mark.parametrize("kind", ["nbi", "nbc"], ids=["index", "machine code"])
def test_a_folder_in_place_of_a_file_is_no_cache(tmp_path: Path, run_caller: Run, kind: str) -> None:
    run_caller()
    for path in (tmp_path / "cache").rglob(f"*.{kind}"):
        path.unlink()
        path.mkdir()
    assert_works_without_cache(*run_caller(), "Is a directory")


def test_without_a_folder_to_write_there_is_no_cache(tmp_path: Path, run_caller: Run) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert_works_without_cache(*run_caller(NUMBA_CACHE_DIR=str(tmp_path / "file")), "File exists")


def test_the_cache_is_the_users_and_not_the_sources(tmp_path: Path, run_caller: Run) -> None:
    own = {"NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path / "caches")}
    assert run_caller(**own)[1].startswith("Compiling")
    assert run_caller(**own) == ("2", "")
    kept = set(tmp_path.rglob("*.nb[ic]"))
    folder = tmp_path / "caches" / "placewalk" / "numba"
    assert kept
    assert kept == {*folder.rglob("*.nb[ic]")}
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())} == {0o700}


@pytest.mark.parametrize("depth", [0, 1], ids=["folder", "folder of the sources"])
def test_a_cache_that_others_can_write_is_not_read(tmp_path: Path, run_caller: Run, depth: int) -> None:
    """Machine code in it is replaced by a pickle that leaves a marker, with the digest that belongs to it."""
    run_caller()
    folder = [tmp_path / "cache", *(tmp_path / "cache").iterdir()][depth]
    marker = tmp_path / "marker"
    harm = f"cposix\nmkdir\n(V{marker}\ntR.".encode()
    for path in folder.rglob("*.nbi"):
        path.write_bytes(hashlib.sha256(harm).digest() + harm)
    folder.chmod(0o777)
    assert_works_without_cache(*run_caller(), f"others can write {folder}")
    assert not marker.exists()
    folder.chmod(0o700)
    run_caller()
    assert marker.exists()  # the pickle does what the first half says that it did not


def test_a_file_that_others_can_write_is_not_read(tmp_path: Path, run_caller: Run) -> None:
    run_caller()
    for path in (tmp_path / "cache").rglob("*.nb[ic]"):
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o666)
    assert run_caller()[1].startswith("Compiling")
    assert run_caller() == ("2", "")


def test_a_cache_in_a_folder_that_others_can_replace_is_not_read(tmp_path: Path, run_caller: Run) -> None:
    tmp_path.chmod(0o777)
    assert_works_without_cache(*run_caller(), f"others can replace folders in {tmp_path}")
    tmp_path.chmod(0o1777)
    assert run_caller()[1].startswith("Compiling")
    assert run_caller() == ("2", "")


def test_on_a_full_disk_there_is_no_cache(tmp_path: Path, run_caller: Run) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
    assert_works_without_cache(*run_caller(limit + CALL), "File too large")
    assert not list((tmp_path / "cache").rglob("*.tmp.*"))
    assert run_caller()[1].startswith("Compiling")
    assert run_caller(limit + CALL) == ("2", "")


def assert_works_without_cache(printed: str, announced: str, reason: str) -> None:
    assert printed == "2"
    kept = [line for line in announced.splitlines() if not line.startswith("Compiling")]
    assert len(kept) == 1, announced
    assert kept[0].startswith("Compiled loops cannot be kept (")
    assert reason in kept[0]


def test_a_cache_that_names_a_renamed_type_is_dropped_and_rebuilt(tmp_path: Path, run_caller: Run) -> None:
    run_caller()
    (tmp_path / "arguments.py").write_text(SOURCES["arguments.py"].replace("Two", "Both"))
    call = CALL.replace("Two", "Both")
    printed, announced = run_caller(call)
    assert printed == "2"
    assert announced.startswith("Compiling")
    assert run_caller(call) == ("2", "")
