"""The wheel brings all that its commands read, and nothing but the three packages."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from graphs.io.graph_files import write_graphs
from graphs.op_graph import build_graph
from tests.sources import ROOT, output_of
from tests.sources import TOPS as PACKAGES

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """The output of a command that succeeds; it sees neither this checkout nor Python's usual variables."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return output_of(command, folder, kept | environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves files behind."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "evaluate.py", "train_agent.py"):
        shutil.copy2(ROOT / name, source / name)
    for package in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    run(
        [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", source / "dist", source],
        source,
    )
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a fresh environment with the wheel, which finds the dependencies where these tests do."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    bin_folder = folder / "bin"
    run([*PIP, "--python", bin_folder / "python", "install", "--no-deps", "--no-index", wheel], folder)
    purelib = run(
        [bin_folder / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder
    )
    # Folders named in a .pth join the path; .pth files in them, e.g. of an editable install, have no effect.
    lines = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (Path(purelib.strip()) / "dependencies.pth").write_text("".join(f"{line}\n" for line in lines))
    return bin_folder


def test_it_brings_three_packages_and_no_other_module(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_it_brings_every_file_that_code_reads(wheel: Path) -> None:
    """All files of the packages except pages, the tables of the results, and the graphs of one page alone."""
    brought = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if path.suffix != ".md" and path.parent.name != "results" and "composed" not in path.name
    }
    assert brought == expected


def test_it_is_imported_from_the_environment_and_its_data_is_found(programs: Path, tmp_path: Path) -> None:
    code = """
import agent, envs, graphs, importlib.util
from agent.lab.questions import RESULTS
from agent.policy.serialization import read_policy
from envs.cluster.presets import get_cluster
from graphs.dataset import load_family

assert importlib.util.find_spec("evaluate") is None
assert importlib.util.find_spec("train_agent") is None
names = ("ablation", "finetuning", "orders")
assert all((RESULTS.parent / f"{name}.json").is_file() for name in names)
read_policy("pretrained").card
get_cluster("4xv100-sxm2")
assert len(load_family("llama")) == 12
print(*(package.__file__ for package in (agent, envs, graphs)), sep="\\n")
"""
    for line in run([programs / "python", "-c", code], tmp_path).split():
        assert Path(line).is_relative_to(programs.parent)


def test_its_commands_run_in_an_empty_folder(programs: Path, tmp_path: Path) -> None:
    assert "usage: placewalk-train --name" in run([programs / "placewalk-train", "--help"], tmp_path)
    ops = [{"name": f"op{index}", "flops": 1e9} for index in range(6)]
    write_graphs(
        tmp_path / "chain.json", [build_graph("chain", "", ops, [(op, 1e6, [op + 1]) for op in range(5)])]
    )
    flags = "--graphs chain.json --placers single policy --budget 2 --seeds 1 --out out"
    # Compiling the kernels takes a minute, running them in Python an instant.
    printed = run([programs / "placewalk-evaluate", *flags.split()], tmp_path, NUMBA_DISABLE_JIT="1")
    assert "policy" in printed
    assert (tmp_path / "out" / "report.html").is_file()
    assert len((tmp_path / "out" / "results.csv").read_text().splitlines()) == 3
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    report = (tmp_path / "out" / "report.html").read_text()
    assert "<code>placewalk-evaluate --graphs chain.json" in report
    assert f"Placewalk {version}</p>" in report, "no commit is known"
    flags = "--graphs chain.json --init pretrained --timesteps 32"
    sizes = "--n-envs 4 --repeats 2 --n-steps 8 --batch-size 32 --epochs 1 --name a"
    run([programs / "placewalk-train", *f"{flags} {sizes}".split()], tmp_path, NUMBA_DISABLE_JIT="1")
    trained = json.loads((tmp_path / "runs" / "a" / "config.json").read_text())
    assert (trained["versions"]["placewalk"], trained["git_commit"]) == (version, None)
