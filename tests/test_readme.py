"""Every snippet of the README runs as pasted, in a fresh copy of the checkout, with the shipped policy.

What takes too long differs: trainings get a fraction of their minutes, evaluations of their budget, LLaMA
7B is not placed, and what `make` and `tensorboard` would do is not done, only their existence checked.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from agent.commands.evaluate_flags import make_parser
from graphs.system.jit import _OwnFolder
from tests.sources import ROOT, output_of

README = (ROOT / "README.md").read_text(encoding="utf-8")
FRONT, BACK = README.split("## Develop")
MINUTES = "0.05"


def blocks(text: str, language: str) -> list[str]:
    """Fenced code blocks of a language; the empty one is the shell."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    return [block for name, block in fenced if name == language]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git knows of the checkout; its compiled kernels are copied too, beside it."""
    folder = tmp_path_factory.mktemp("clone")
    listed = output_of(["git", "ls-files", "--cached", "--others", "--exclude-standard"]).splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for room in {Path(name).parent for name in listed}:
        here, there = (_OwnFolder(run, str(top / room / "any.py")).get_cache_path() for top in (ROOT, folder))
        if Path(here).is_dir():
            shutil.copytree(here, kernels_of(folder) / Path(there).name)
    return folder


def kernels_of(clone: Path) -> Path:
    """Folder of a clone's compiled kernels."""
    return clone.with_name("kernels")


def run(clone: Path, *arguments: str) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(kernels_of(clone))}
    return output_of([sys.executable, *arguments], clone, environment)


def test_the_front_page_is_read_in_two_minutes() -> None:
    assert len(FRONT.split()) <= 600


def test_setup_is_not_silent() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r'@echo "(\d) of 3: .*(?:seconds|minutes)"', text) == ["1", "2", "3"]
    assert "--quiet" not in text


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target


def test_snippets_run_as_pasted(clone: Path) -> None:
    for name, block in zip(("quickstart", "learn"), blocks(FRONT, "python"), strict=True):
        (clone / f"{name}.py").write_text(block.replace("1_500_000", "5_000"))
    commands = [line.split("  #")[0] for block in blocks(FRONT, "") for line in block.splitlines()]
    assert len(commands) > 5
    for command in commands:
        words = command.split()
        if words[0] == "make":
            output_of(["make", "-n", words[1]], clone)
        elif words[0] == "tensorboard":
            assert (Path(sys.executable).parent / "tensorboard").exists()
        else:
            assert words[0] == "python"
            if "graphs.families.large:llama_7b" in words:
                assert make_parser().parse_args(words[2:]).out
                continue
            if "--minutes" in words:
                words[words.index("--minutes") + 1] = MINUTES
            run(clone, *words[1:], *["--budget", "200"] * (words[1] == "evaluate.py"))
    assert "use this placement: no single device has the memory" in run(clone, "quickstart.py")
    run(clone, "learn.py")
    assert (clone / "step.svg").exists()
    assert (clone / "runs" / "learned" / "policy.json").exists()
    assert (clone / "runs" / "mine" / "report.html").exists()
    assert (clone / "runs" / "first" / "bert" / "results.csv").exists()


def test_extensions_work_as_pasted(clone: Path) -> None:
    order, *modules = blocks(BACK, "python")
    orders = clone / "graphs" / "orders.py"
    orders.write_text(orders.read_text() + "\n\n" + order)
    files = [re.match(r"# (\S+\.py)\n", module)[1] for module in modules]  # type: ignore[index]
    for file, module in zip(files, modules, strict=True):
        (clone / file).write_text(module)
    add(clone / "agent/placers/base.py", r"^    \"heuristics.by_rule\",$", '    "heuristics.coin_toss",')
    add(clone / "graphs/families/__init__.py", r"^    \"llama\": 12,$", '    "mlp": 2,')
    named = ' "agent.policy.encoders.gcn",'
    add(clone / "agent/policy/encoders/base.py", r"message_passing\",", named, separator="")
    run(clone, "-m", "graphs.dataset", "--build", "--families", "mlp", "--out", "built")
    flags = f"--graphs built/mlp.jsonl.gz --name extended --encoder gcn --minutes {MINUTES}"
    run(clone, "train_agent.py", *flags.split(), "--order", "widest-first")
    flags = "--graphs built/mlp.jsonl.gz --policy runs/extended --include-seen --placers coin-toss policy"
    flags += " --orders widest-first --seeds 1 --out runs/extended/out"
    printed = run(clone, "evaluate.py", *flags.split())
    assert "coin-toss" in printed
    assert "widest-first" in printed


def add(file: Path, pattern: str, line: str, separator: str = "\n") -> None:
    """Put a line after one that is there."""
    text = file.read_text()
    found = re.search(pattern, text, flags=re.M)
    assert found, f"{file} has no {pattern}"
    file.write_text(text[: found.end()] + separator + line + text[found.end() :])
