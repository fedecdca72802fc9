"""Run as a program: runs the capture and policy tests on each version of torch and Python; takes hours.

Each pair gets an environment of its own, as `pip install torch==X` makes it, which is removed afterwards.
Results are kept in `tests/versions.json`, and the table of `CONTRIBUTING.md` is written from them. A pair
that has run at this commit is not run again; give pairs such as `2.15.0:3.12` to run some alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "versions.json"
PAGE = ROOT / "CONTRIBUTING.md"
FIRST, LAST = "<!-- begin of the table that make versions writes -->", "<!-- end of that table -->"
TESTS = ("tests/graphs/capture", "tests/agent/policy")
PAIRS = (
    ("2.15.0", "3.12"),
    ("2.15.0", "3.11"),
    ("2.15.0", "3.13"),
    ("2.14.1", "3.12"),
    ("2.13.0", "3.11"),
    ("2.13.0", "3.12"),
    ("2.13.0", "3.13"),
    ("2.12.1", "3.12"),
    ("2.11.0", "3.11"),
    ("2.11.0", "3.12"),
    ("2.11.0", "3.13"),
)
"""The versions of torch and of Python that are tried together."""
PINNED_BY_TORCH = ("torch", "setuptools")
"""Packages of which every torch wants a version of its own."""
NOT_NEEDED = ("torch", "ruff", "mypy")
LIMIT_S = 4 * 3600


@dataclass(frozen=True)
class Result:
    """The result of one pair.

    Attributes:
        installed: the version that torch says it has; "" if it could not be installed.
        commit: of the tree; "+" after it says that files had been changed since.
        words: cell of the table: what pytest counted, or why there is no count.
        is_whole: whether `TESTS` were run to their end and passed.
    """

    torch: str
    python: str
    installed: str
    commit: str
    date: str
    words: str
    is_whole: bool = False


def table(results: Sequence[Result], pairs: Sequence[tuple[str, str]] = PAIRS) -> list[str]:
    """Makes the lines of the table: each pair with its newest result; then the pairs that were not run."""
    newest = {(each.torch, each.python): each for each in results}
    lines = [
        "| torch | Python | capture and policy tests | commit | date |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (torch, python), found in sorted(newest.items(), key=lambda item: _newest_first(item[0])):
        cells = found.installed or torch, python, found.words, found.commit, found.date
        lines.append(f"| {' | '.join(cells)} |")
    missing = [":".join(pair) for pair in sorted({*pairs} - {*newest}, key=_newest_first)]
    return [*lines, "", f"Not run: {', '.join(missing)}."] if missing else lines


def _newest_first(pair: tuple[str, str]) -> list[tuple[int, ...]]:
    return [tuple(-int(part) for part in version.split(".")) for version in pair]


def write_table(results: Sequence[Result], page: Path = PAGE) -> None:
    """Replaces the table between the two marks of a page."""
    text = page.read_text()
    before, rest = text.split(FIRST)
    after = rest.split(LAST)[1]
    page.write_text("\n".join([f"{before}{FIRST}", *table(results), f"{LAST}{after}"]))


def read_results(path: Path = RESULTS) -> list[Result]:
    """Reads the results that are kept."""
    return [Result(**each) for each in json.loads(path.read_text())] if path.exists() else []


def keep(result: Result, path: Path = RESULTS) -> list[Result]:
    """Keeps a result in place of any older one of its pair; returns all."""
    others = [
        each for each in read_results(path) if (each.torch, each.python) != (result.torch, result.python)
    ]
    results = sorted([*others, result], key=lambda each: _newest_first((each.torch, each.python)))
    path.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    return results


def python_of(version: str) -> str | None:
    """Finds a Python on the path, or in the user's pyenv."""
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(own[-1]) if own else shutil.which(f"python{version}")


def install(torch: str, python: str, folder: Path) -> None:
    """Makes an environment with a version of torch, and all else as `constraints.txt` says."""
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    pins = folder / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    pins.write_text("\n".join(line for line in pinned if line.split("==")[0] not in PINNED_BY_TORCH) + "\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    others = [each for each in wanted if not each.startswith(tuple(f"{name}>" for name in NOT_NEEDED))]
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile"]
    # The variable takes the place of constraints that the machine's pip may have, which can exclude a torch.
    environment = os.environ | {"PIP_CONSTRAINT": str(pins), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([*command, f"torch=={torch}", *others], check=True, env=environment)


def run_pair(torch: str, python: str, folder: Path, tests: Sequence[str]) -> Result:
    """Installs a pair and runs tests on it; never raises for what fails."""
    about = (commit(), datetime.date.today().isoformat())
    found = python_of(python)
    if found is None:
        return Result(torch, python, "", *about, f"no Python {python} here")
    executable = folder / "bin" / "python"
    try:
        if not executable.exists():
            install(torch, found, folder)
        says = [executable, "-c", "import torch; print(torch.__version__)"]
        installed = subprocess.run(says, check=True, capture_output=True, text=True).stdout.strip()
    except subprocess.CalledProcessError as error:
        return Result(torch, python, "", *about, f"cannot be installed: pip ended with {error.returncode}")
    command = [executable, "-m", "pytest", "-q", *tests]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (folder / "output").open("w+") as output:
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return Result(torch, python, installed, *about, f"stopped after {LIMIT_S} s")
        output.seek(0)
        said = output.read()
    print(said)
    is_whole = set(TESTS) <= set(tests)
    last = (said.splitlines() or ["pytest said nothing"])[-1]
    words = last.partition(" in ")[0] + (not is_whole) * f" (of {', '.join(tests)} alone)"
    return Result(torch, python, installed, *about, words, is_whole and not done.returncode)


def commit() -> str:
    """Says the commit of the tree; with a "+" if the product has been changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    changed = git("status", "--porcelain", "graphs", "envs", "agent", "tests/graphs", "tests/agent").strip()
    return git("rev-parse", "--short", "HEAD").strip() + ("+" if changed else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the pairs; 1 if a test failed or a pair could not be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__.split("\n")[0])
    parser.add_argument(
        "pairs", nargs="*", metavar="TORCH:PYTHON", help="such as 2.15.0:3.12; all by default"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "versions", help="of the environments"
    )
    parser.add_argument("--tests", nargs="+", default=TESTS, help="run these alone")
    parser.add_argument("--keep", action="store_true", help="keep the environments, of some GB each")
    options = parser.parse_args(arguments)
    pairs = [tuple(each.split(":")) for each in options.pairs] or PAIRS
    known = {(each.torch, each.python): each for each in read_results()}
    failed = False
    for torch, python in pairs:
        found = known.get((torch, python))
        if found is None or not found.is_whole or found.commit != commit():
            folder = options.folder / f"torch{torch}-py{python}"
            found = run_pair(torch, python, folder, options.tests)
            write_table(keep(found))
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
        print(f"torch {torch}, Python {python}: {found.words}", flush=True)
        failed |= " passed" not in found.words or "failed" in found.words
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
